package workspaces

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// storedObject is an object with metadata.
type storedObject interface {
	runtime.Object
	metav1.Object
}

// initialObject is an object that every workspace begins with.
type initialObject struct {
	resource schema.GroupResource
	object   storedObject
}

// initialObjects returns the default roles of Kubernetes, the namespaces, and the objects that every namespace has. The namespace default
// is the last one: a workspace that has it has all of them. The computation takes milliseconds, so a server does it once.
func initialObjects(rootCA []byte) (all []initialObject) {
	add := func(resource string, object storedObject) {
		all = append(all, initialObject{schema.GroupResource{Group: rbacv1.GroupName, Resource: resource}, object})
	}
	roles := withAggregatedRules(slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()))
	for i := range roles {
		add("clusterroles", &roles[i])
	}
	for _, binding := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		add("clusterrolebindings", &binding)
	}
	for _, list := range bootstrappolicy.NamespaceRoles() {
		for _, role := range list {
			add("roles", &role)
		}
	}
	for _, list := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range list {
			add("rolebindings", &binding)
		}
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, metav1.NamespaceDefault} {
		all = append(all, companions(name, rootCA)...)
		all = append(all, initialObject{namespaces, activeNamespace(name)})
	}
	return all
}

// ownerBinding gives the owner of a workspace all permissions in it.
func ownerBinding(owner string) initialObject {
	return initialObject{schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "workspace-owner"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: owner}},
	}}
}

// withAggregatedRules sets the rules of ClusterRoles that aggregate others, as the controller does in a cluster.
func withAggregatedRules(roles []rbacv1.ClusterRole) []rbacv1.ClusterRole {
	slices.SortFunc(roles, byName) // the controller adds rules in this order, and would change another one
	// admin aggregates edit, which aggregates view: repeat until nothing changes.
	for changed := true; changed; {
		changed = false
		for i := range roles {
			if rules := aggregatedRules(&roles[i], roles); roles[i].AggregationRule != nil && !equality.Semantic.DeepEqual(rules, roles[i].Rules) {
				roles[i].Rules, changed = rules, true
			}
		}
	}
	return roles
}

func byName(a, b rbacv1.ClusterRole) int { return cmp.Compare(a.Name, b.Name) }

func aggregatedRules(of *rbacv1.ClusterRole, roles []rbacv1.ClusterRole) (rules []rbacv1.PolicyRule) {
	if of.AggregationRule == nil {
		return nil
	}
	for _, selector := range of.AggregationRule.ClusterRoleSelectors {
		matches, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil {
			continue
		}
		for i := range roles {
			if roles[i].Name == of.Name || !matches.Matches(labels.Set(roles[i].Labels)) {
				continue
			}
			for _, rule := range roles[i].Rules {
				if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return equality.Semantic.DeepEqual(r, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// birthKey has the time at which a workspace was created, and its UID then: a copy of it keeps both, as its objects keep their UIDs. Its
// revision is that of the base objects.
const birthKey = "/atoll/birth"

// Initialize makes a workspace complete, unless it is, and its client show the objects that it begins with. begin is called if the workspace
// is new, also if a server crashed after it created the keyspace. Initialize may be repeated after an error. Call it before the first request.
func (s *Server) Initialize(ctx context.Context, w *Workspace, begin func(context.Context) (Beginning, error)) error {
	chain, err := s.built()
	if err != nil {
		return err
	}
	base, err := s.base()
	if err != nil {
		return fmt.Errorf("initialize a workspace: %w", err)
	}
	of, err := w.birth(ctx)
	if err == nil && of == nil {
		var stored bool
		if stored, err = w.storesAll(ctx); stored {
			return nil
		}
		if err == nil {
			of, err = chain.create(ctx, w, begin)
		}
	}
	if err != nil {
		return fmt.Errorf("initialize a workspace: %w", err)
	}
	base.install(w.client, *of)
	return nil
}

// birth reads when the workspace was created; nil if it is new, or stores all objects.
func (w *Workspace) birth(ctx context.Context) (*birth, error) {
	got, err := w.client.KV.Get(ctx, birthKey)
	if err != nil || len(got.Kvs) == 0 {
		return nil, err
	}
	at, uid, _ := strings.Cut(string(got.Kvs[0].Value), " ")
	created, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return nil, fmt.Errorf("read the time of its creation: %w", err)
	}
	return &birth{uid: uid, created: created, revision: got.Kvs[0].ModRevision}, nil
}

// storesAll reports whether an earlier version of Atoll has created the workspace: it wrote all objects, the namespace default as the last.
func (w *Workspace) storesAll(ctx context.Context) (bool, error) {
	got, err := w.client.KV.Get(ctx, keyOf(namespaces.Resource, &metav1.ObjectMeta{Name: metav1.NamespaceDefault}), clientv3.WithCountOnly())
	return err == nil && got.Count > 0, err
}

// writesAtOnce is how many writes of a new workspace one transaction makes; a keyspace permits 128.
const writesAtOnce = 100

// create writes what a new workspace stores, unless another server does so at this moment. The key of its birth is the last one, and
// nothing is written after it: if a server crashes before, create is repeated, and if two servers write, the workspace has the objects of
// one or the other.
func (c *chain) create(ctx context.Context, w *Workspace, begin func(context.Context) (Beginning, error)) (*birth, error) {
	with, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	writes, err := c.writes(ctx, with)
	if err != nil {
		return nil, err
	}
	writes = append(writes, clientv3.OpPut(birthKey, time.Now().UTC().Format(time.RFC3339)+" "+w.uid))
	for some := range slices.Chunk(writes, writesAtOnce) {
		if _, err := w.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(birthKey), "=", 0)).Then(some...).Commit(); err != nil {
			return nil, err
		}
	}
	of, err := w.birth(ctx)
	if err == nil && of == nil {
		err = errors.New("the record of its creation is missing after the write")
	}
	return of, err
}

// write returns the write of a new object, as the storage of its resource would make it. Other workspaces get the same object.
func (c *chain) write(ctx context.Context, o initialObject) (none clientv3.Op, err error) {
	object, ok := o.object.DeepCopyObject().(storedObject)
	if !ok {
		return none, fmt.Errorf("%s %s has no metadata", o.resource, o.object.GetName())
	}
	object.SetUID(uuid.NewUUID())
	object.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	cfg, err := c.factory.NewConfig(o.resource, nil)
	if err != nil {
		return none, err
	}
	encoded, err := runtime.Encode(cfg.Codec, object)
	if err != nil {
		return none, fmt.Errorf("encode %s %s: %w", o.resource, o.object.GetName(), err)
	}
	key := keyOf(c.factory.ResourcePrefix(o.resource), object)
	stored, err := c.transformer(o.resource).TransformToStorage(ctx, encoded, value.DefaultContext(key))
	if err != nil {
		return none, fmt.Errorf("encrypt %s %s: %w", o.resource, o.object.GetName(), err)
	}
	return clientv3.OpPut(key, string(stored)), nil
}

// keyOf returns the key under which the storage of a resource has an object.
func keyOf(resourcePrefix string, object metav1.Object) string {
	key := "/registry/" + resourcePrefix + "/"
	if object.GetNamespace() != "" {
		key += object.GetNamespace() + "/"
	}
	return key + object.GetName()
}
