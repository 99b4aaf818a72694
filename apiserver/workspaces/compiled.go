package workspaces

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/atoll-dev/atoll/apiserver/turns"
	"github.com/atoll-dev/atoll/kv"
)

// While a workspace is awake, each of its definitions takes about a megabyte of memory, and each expression about 100 KB. So a workspace has
// limits of both. How many an object has is in an entry of the keyspace, below kv.CompiledKey, because the objects may be encrypted. A write
// that changes the number has the entry in its transaction, which also compares and puts kv.CompiledKey: so two writes at once do not both
// pass. Objects without an entry, such as those of an earlier version of Atoll, are read and counted by the next write. An entry whose object
// is gone does not count.

// Compiled is how many definitions and expressions there are, or may be.
type Compiled struct{ Definitions, Expressions int64 }

// Min returns the lower one of each number.
func (c Compiled) Min(d Compiled) Compiled {
	return Compiled{min(c.Definitions, d.Definitions), min(c.Expressions, d.Expressions)}
}

// SetCompiledLimits changes the limits of a workspace.
func (w *Workspace) SetCompiledLimits(limits Compiled) { w.compiledLimits.Store(&limits) }

// CompiledLimits returns the limits of a workspace; known is false until they are set.
func (w *Workspace) CompiledLimits() (limits Compiled, known bool) {
	if l := w.compiledLimits.Load(); l != nil {
		return *l, true
	}
	return Compiled{}, false
}

// turnsOf returns the turns in which a request evaluates expressions, nil for those of the server itself.
func turnsOf(ctx context.Context) turns.Turns {
	w := workspaceOf(ctx)
	if w == nil || isServers(ctx) {
		return nil
	}
	return w.turns
}

// evaluatesExpressions reports whether the validation of objects of a group evaluates or compiles expressions.
func evaluatesExpressions(group string) bool {
	return !legacyscheme.Scheme.IsGroupRegistered(group) || group == admissionregistrationv1.GroupName || group == apiextensionsv1.GroupName
}

// compiledError says which limit a write would exceed.
type compiledError struct {
	field                  string
	used, requested, limit int64
}

func (e *compiledError) Error() string { return e.in("").Error() }

// in returns the error for the workspace with that path.
func (e *compiledError) in(workspace string) error {
	of := "the workspace"
	if workspace != "" {
		of = fmt.Sprintf("workspace %q", workspace)
	}
	remedy := "delete CustomResourceDefinitions"
	if e.field == "expressions" {
		remedy = "remove rules of CustomResourceDefinitions, admission policies or webhooks"
	}
	return fmt.Errorf("exceeded limit of %s: %s %d, requested %d more, limit %d: %s, or ask an administrator to raise spec.limits.%s of the workspace, and of the workspaces above it",
		of, e.field, e.used, e.requested, e.limit, remedy, e.field)
}

// exceeds returns the error of a write that changes an object from before to after, next to others. What does not grow is permitted.
func (c Compiled) exceeds(others, before, after Compiled) error {
	for _, one := range []struct {
		field                         string
		others, before, after, limits int64
	}{
		{"definitions", others.Definitions, before.Definitions, after.Definitions, c.Definitions},
		{"expressions", others.Expressions, before.Expressions, after.Expressions, c.Expressions},
	} {
		if one.after > one.before && one.others+one.after > one.limits {
			return &compiledError{one.field, one.others + one.before, one.after - one.before, one.limits}
		}
	}
	return nil
}

// compiledChange is what a write changes. It is in the context of the write, because the client of a keyspace gets encrypted bytes.
type compiledChange struct {
	before, after Compiled
	// limits are nil for a workspace without any, such as the one with the definitions of the server.
	limits *Compiled
	known  bool
}

type compiledKey struct{}

// withNewCompiled returns the context of the creation of an object.
func (s *requestStore) withNewCompiled(ctx context.Context, obj runtime.Object) context.Context {
	if !isCompiled(s.group) {
		return ctx
	}
	return context.WithValue(ctx, compiledKey{}, &compiledChange{after: compiledOf(obj), limits: s.compiledLimits(ctx), known: true})
}

func (s *requestStore) compiledLimits(ctx context.Context) *Compiled {
	if w := s.workspace(ctx); w != nil {
		return w.compiledLimits.Load()
	}
	return nil
}

// withCompiledUpdate returns the context of a write, and the update that records the numbers.
func (s *requestStore) withCompiledUpdate(ctx context.Context, update storage.UpdateFunc) (context.Context, storage.UpdateFunc) {
	if !isCompiled(s.group) {
		return ctx, update
	}
	change := &compiledChange{limits: s.compiledLimits(ctx)}
	return context.WithValue(ctx, compiledKey{}, change), func(existing runtime.Object, m storage.ResponseMeta) (runtime.Object, *uint64, error) {
		change.before = compiledOf(existing) // update may change it in place
		updated, ttl, err := update(existing, m)
		if err == nil {
			change.after, change.known = compiledOf(updated), true
		}
		return updated, ttl, err
	}
}

// compiling are the keys of a resource whose objects are compiled.
type compiling struct {
	kubernetes.Interface
	kv          clientv3.KV
	transformer func(schema.GroupResource) value.Transformer
}

// withCompiled returns the client of the storage of a resource.
func withCompiled(resource schema.GroupResource, transformer func(schema.GroupResource) value.Transformer, client *kubernetes.Client) *kubernetes.Client {
	if !isCompiled(resource) {
		return client
	}
	return &kubernetes.Client{Client: client.Client, Kubernetes: compiling{client.Kubernetes, client.KV, transformer}}
}

// compiledAttempts bounds how often a write is repeated because another one has changed the numbers.
const compiledAttempts = 50

var errCompiled = errors.New("the number of expressions of the object is not known: this is a bug, please report it")

// OptimisticPut implements kubernetes.Interface.
func (c compiling) OptimisticPut(ctx context.Context, key string, value []byte, expected int64, opts kubernetes.PutOptions) (none kubernetes.PutResponse, _ error) {
	of, _ := ctx.Value(compiledKey{}).(*compiledChange)
	if of == nil || !of.known {
		return none, errCompiled
	}
	if expected != 0 && of.before == of.after {
		return c.Interface.OptimisticPut(ctx, key, value, expected, opts)
	}
	for range compiledAttempts {
		counted, err := countCompiled(ctx, c.kv, c.transformer, key)
		if err != nil {
			return none, err
		}
		before := of.before
		if expected == 0 {
			before = Compiled{}
		}
		if of.limits != nil {
			if err := of.limits.exceeds(counted.others, before, of.after); err != nil {
				return none, err
			}
		}
		changes := append(counted.changes, putCompiled(key, of.after), clientv3.OpPut(kv.CompiledKey, ""))
		out, retry, err := putCounted(ctx, c.Interface, c.kv, revisionIs(kv.CompiledKey, counted.revision), changes, key, value, expected, opts)
		if !retry {
			return out, err
		}
	}
	return none, fmt.Errorf("write %s: others have changed the number of expressions of the workspace %d times: retry", key, compiledAttempts)
}

func putCompiled(key string, n Compiled) clientv3.Op {
	return clientv3.OpPut(kv.CompiledKey+key, fmt.Sprintf("%d %d", n.Definitions, n.Expressions))
}

// parseCompiled reads an entry. One that cannot be read is as none: its object is counted again.
func parseCompiled(entry string) (n Compiled, ok bool) {
	definitions, expressions, _ := strings.Cut(entry, " ")
	var errs [2]error
	n.Definitions, errs[0] = strconv.ParseInt(definitions, 10, 64)
	n.Expressions, errs[1] = strconv.ParseInt(expressions, 10, 64)
	return n, errors.Join(errs[:]...) == nil && n.Definitions >= 0 && n.Expressions >= 0
}

// compiledCount is what a workspace has.
type compiledCount struct {
	// others are the numbers of all objects but one.
	others Compiled
	// revision is that of kv.CompiledKey before they were counted.
	revision int64
	// changes write the missing entries, and remove those without an object.
	changes []clientv3.Op
}

// countCompiled counts what a workspace has, but for the object with a key.
func countCompiled(ctx context.Context, keyspace clientv3.KV, transformer func(schema.GroupResource) value.Transformer, but string) (all compiledCount, err error) {
	// The entries first: if an object is written after that, kv.CompiledKey has changed.
	found, err := keyspace.Get(ctx, kv.CompiledKey, clientv3.WithPrefix())
	if err != nil {
		return all, fmt.Errorf("count the expressions of the workspace: %w", err)
	}
	entries := map[string]Compiled{}
	for _, e := range found.Kvs {
		key := strings.TrimPrefix(string(e.Key), kv.CompiledKey)
		if key == "" {
			all.revision = e.ModRevision
		} else if n, ok := parseCompiled(string(e.Value)); ok {
			entries[key] = n
		}
	}
	for _, resource := range compiledResources() {
		objects, err := keyspace.Get(ctx, compiledPrefix(resource), clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			return all, fmt.Errorf("count the expressions of the workspace: %w", err)
		}
		for _, o := range objects.Kvs {
			key := string(o.Key)
			n, ok := entries[key]
			delete(entries, key)
			if key == but {
				continue
			}
			if !ok {
				if n, err = readCompiled(ctx, keyspace, transformer(resource), key); err != nil {
					return all, fmt.Errorf("count the expressions of %s: %w", strings.TrimPrefix(key, "/registry/"), err)
				}
				all.changes = append(all.changes, putCompiled(key, n))
			}
			all.others.Definitions += n.Definitions
			all.others.Expressions += n.Expressions
		}
	}
	for key := range entries {
		if key != but {
			all.changes = append(all.changes, clientv3.OpDelete(kv.CompiledKey+key))
		}
	}
	return all, nil
}

// CountCompiled counts what a keyspace has, without a workspace.
func (s *Server) CountCompiled(ctx context.Context, keyspace clientv3.KV) (Compiled, error) {
	all, err := countCompiled(ctx, keyspace, s.config.Transformer, "")
	return all.others, err
}

// Compiled counts what an open workspace has.
func (s *Server) Compiled(ctx context.Context, w *Workspace) (Compiled, error) {
	return s.CountCompiled(ctx, w.client.KV)
}

// readCompiled counts the expressions of a stored object. One that is gone has none.
func readCompiled(ctx context.Context, keyspace clientv3.KV, transformer value.Transformer, key string) (Compiled, error) {
	found, err := keyspace.Get(ctx, key)
	if err != nil || len(found.Kvs) == 0 {
		return Compiled{}, err
	}
	plain, _, err := transformer.TransformFromStorage(ctx, found.Kvs[0].Value, value.DefaultContext(key))
	if err != nil {
		return Compiled{}, err
	}
	obj, err := decodeCompiled(key, plain)
	if err != nil {
		return Compiled{}, fmt.Errorf("decode it: %w", err)
	}
	return compiledOf(obj), nil
}
