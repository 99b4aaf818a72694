package infra

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
	"k8s.io/apimachinery/pkg/util/json" // keeps integers as integers
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/atoll-dev/atoll/infra/decide"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/schema"
)

// evaluatedSpec is an object's spec with all references resolved.
type evaluatedSpec struct {
	spec map[string]any
	own  schema.MetaArguments
	// config has its secret parts marked.
	config cty.Value
	// origins are the expressions that set the arguments, by field path without the spec prefix.
	origins map[string]string
	// unwatched means that a Secret or another Kubernetes object is an input. The Inventory is not
	// told when those change, so that the spec has to be evaluated for every plan.
	unwatched bool
}

// lifecycle returns the lifecycle settings of the spec, except triggers, which depend on other
// resources.
func (e *evaluatedSpec) lifecycle() decide.Lifecycle {
	l := e.own.Lifecycle
	return decide.Lifecycle{
		PreventDestroy: l.PreventDestroy, CreateBeforeDestroy: l.CreateBeforeDestroy,
		IgnoreChanges: l.IgnoreChanges, IgnoreAll: l.IgnoreAll,
	}
}

// Evaluator evaluates the specs of objects. It is safe for concurrent use.
type Evaluator struct {
	Language *expr.Language
	Values   ValueReader
}

// evaluate evaluates an object's spec. others provides the values of other resources and data
// sources. Errors name their fields.
func (e *Evaluator) evaluate(ctx context.Context, o *Object, kind *schema.Kind, others expr.Scope) (*evaluatedSpec, field.ErrorList) {
	out := &evaluatedSpec{origins: map[string]string{}}
	if err := json.Unmarshal(o.Spec, &out.spec); err != nil {
		return nil, field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, fmt.Sprintf("must be an object: %v", err))}
	}
	own, errs := kind.MetaArguments(out.spec)
	out.own = own
	r := &resolver{ctx: ctx, evaluator: e, namespace: o.Ref.Namespace, others: others, out: out}
	config, more := kind.Config(out.spec, r)
	if errs = append(errs, more...); len(errs) > 0 {
		return out, errs
	}
	out.config = config
	return out, nil
}

// resolver resolves the expressions and secrets of one object.
type resolver struct {
	ctx       context.Context
	evaluator *Evaluator
	namespace string
	others    expr.Scope
	out       *evaluatedSpec
}

func (r *resolver) Expression(at *field.Path, text string) (cty.Value, error) {
	parsed, err := r.evaluator.Language.Template(text, r.namespace)
	if err != nil {
		return cty.NilVal, err
	}
	r.out.origins[strings.TrimPrefix(at.String(), "spec.")] = text
	return parsed.Value(expr.Scope{
		Lookup: func(ref expr.Ref) (cty.Value, error) {
			if ref.Kind == expr.Kubernetes {
				r.out.unwatched = true
				return r.evaluator.Values.Object(r.ctx, ref)
			}
			return r.others.Lookup(ref)
		},
		Attribute:   r.others.Attribute,
		Interrupted: func() bool { return r.ctx.Err() != nil },
	})
}

func (r *resolver) Secret(_ *field.Path, ref schema.SecretKeyRef) (cty.Value, error) {
	r.out.unwatched = true
	text, err := r.evaluator.Values.Secret(r.ctx, r.namespace, ref.Name, ref.Key)
	if err != nil {
		return cty.NilVal, err
	}
	return cty.StringVal(string(text)).Mark(providerapi.Sensitive), nil
}

// fingerprint identifies everything that a plan for the object depends on, except its state: the
// resolved arguments, which of them are secret, the lifecycle settings, the revision of its type,
// and that of the provider's configuration. While it is unchanged, the provider need not be asked
// again. It is empty if a value is unknown.
//
// It is keyed with the object's UID, so that equal secrets of two objects look different to readers
// of states.
func (e *evaluatedSpec) fingerprint(o *Object, kind *ServedKind, configRevision string) string {
	config, secret := schema.Unmark(e.config)
	if !config.IsWhollyKnown() {
		return ""
	}
	packed, err := msgpack.Marshal(config, kind.Schema.Block.ImpliedType())
	if err != nil {
		return "" // the provider is asked every time
	}
	h := hmac.New(sha256.New, []byte(o.UID))
	part := func(text string) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(text)))
		h.Write(length[:])
		io.WriteString(h, text)
	}
	paths := func(list []cty.Path) {
		texts := make([]string, len(list))
		for i, path := range list {
			texts[i] = providerapi.PathText(path)
		}
		slices.Sort(texts)
		part(strings.Join(texts, "\x00"))
	}
	lifecycle := e.own.Lifecycle
	part("atoll settled 1")
	part(string(packed))
	paths(secret)
	part(fmt.Sprint(lifecycle.PreventDestroy, lifecycle.CreateBeforeDestroy, lifecycle.IgnoreAll))
	paths(lifecycle.IgnoreChanges)
	part(kind.Revision)
	part(e.own.Provider)
	part(configRevision)
	return hex.EncodeToString(h.Sum(nil))
}
