package apistore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/expr"
	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Values reads the values that expressions and arguments take from the API. It implements infra.ValueReader,
// and reads with all rights: ForPlan and ForApply say for which namespace.
type Values struct {
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	discovery discovery.CachedDiscoveryInterface
}

// NewValues returns Values that read through the given clients.
func NewValues(client dynamic.Interface, kube kubernetes.Interface) *Values {
	return &Values{kube: kube, dynamic: client, discovery: memory.NewMemCacheClient(kube.Discovery())}
}

// evaluation is the context in which values are read. What a plan or an apply may read depends on its
// namespace.
type evaluation struct {
	namespace string
	// cache makes each value be read once.
	cache bool

	mu         sync.Mutex
	secrets    map[[2]string]func() (*corev1.Secret, error)
	kubernetes map[expr.Ref]func() (cty.Value, error)
	// waiting are the workloads that the plan changes: their future status is unknown.
	workloads map[change.Address]bool
	// rediscovered is true once the kinds were discovered again.
	rediscovered bool
}

type evaluationKey struct{}

func withEvaluation(ctx context.Context, r *evaluation) context.Context {
	r.secrets, r.kubernetes = map[[2]string]func() (*corev1.Secret, error){}, map[expr.Ref]func() (cty.Value, error){}
	return context.WithValue(ctx, evaluationKey{}, r)
}

// ForPlan returns a context in which values are read for a plan of a namespace: each once, so that the plan
// sees one moment as far as possible. changes are those of workloads: the future status of a workload that the
// plan places is unknown.
func ForPlan(ctx context.Context, namespace string, changes []*change.Change) context.Context {
	r := &evaluation{namespace: namespace, cache: true, workloads: map[change.Address]bool{}}
	for _, c := range changes {
		r.workloads[c.Address] = c.Action == change.Place
	}
	return withEvaluation(ctx, r)
}

// ForApply returns a context in which values are read for an apply of a namespace: whenever they are needed,
// as they are at that time.
func ForApply(ctx context.Context, namespace string) context.Context {
	return withEvaluation(ctx, &evaluation{namespace: namespace})
}

func evaluationOf(ctx context.Context) *evaluation {
	r, _ := ctx.Value(evaluationKey{}).(*evaluation)
	return r
}

// cached returns what this evaluation has read under a key, or reads it. Concurrent callers share one read.
func cached[K comparable, V any](r *evaluation, held func(*evaluation) map[K]func() (V, error), key K, read func() (V, error)) (V, error) {
	if r == nil || !r.cache {
		return read()
	}
	r.mu.Lock()
	once := held(r)[key]
	if once == nil {
		once = sync.OnceValues(read)
		held(r)[key] = once
	}
	r.mu.Unlock()
	return once()
}

// Secret returns the value of one key of a Secret.
func (s *Values) Secret(ctx context.Context, namespace, name, key string) ([]byte, error) {
	if err := checkNamespace(ctx, namespace, "Secret", name); err != nil {
		return nil, err
	}
	secret, err := cached(evaluationOf(ctx), func(r *evaluation) map[[2]string]func() (*corev1.Secret, error) { return r.secrets }, [2]string{namespace, name}, func() (*corev1.Secret, error) {
		return s.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("Secret %s not found in namespace %s: create it with the key %s", name, namespace, key)
	case err != nil:
		return nil, fmt.Errorf("read Secret %s of namespace %s: %w", name, namespace, err)
	}
	value, found := secret.Data[key]
	if !found {
		keys := make([]string, 0, len(secret.Data))
		for k := range secret.Data {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		return nil, fmt.Errorf("Secret %s has no key %q, but %s", name, key, joinOrNone(keys))
	}
	return value, nil
}

func joinOrNone(names []string) string {
	if len(names) == 0 {
		return "no keys"
	}
	return strings.Join(names, ", ")
}

// checkNamespace rejects secret values of another namespace. A user who may write infrastructure here need
// not have any right there, while the server reads with all rights.
func checkNamespace(ctx context.Context, namespace, kind, name string) error {
	if r := evaluationOf(ctx); r != nil && r.namespace != "" && r.namespace != namespace {
		return fmt.Errorf("%s %s of namespace %s cannot be read from namespace %s: secret values are available only in their own namespace", kind, name, namespace, r.namespace)
	}
	return nil
}

// Object returns a whole object. The data of a Secret is marked sensitive.
func (s *Values) Object(ctx context.Context, ref expr.Ref) (cty.Value, error) {
	return cached(evaluationOf(ctx), func(r *evaluation) map[expr.Ref]func() (cty.Value, error) { return r.kubernetes }, ref, func() (cty.Value, error) {
		return s.read(ctx, ref)
	})
}

func (s *Values) read(ctx context.Context, ref expr.Ref) (cty.Value, error) {
	found, err := s.find(ctx, ref)
	if err != nil {
		return cty.NilVal, err
	}
	if found.gvr.Group == v1alpha1.Group {
		return cty.NilVal, fmt.Errorf("%s: objects of group %s cannot be referenced: reference the resource itself", ref, v1alpha1.Group)
	}
	secret := found.gvr.GroupResource() == schema.GroupResource{Resource: "secrets"}
	if secret {
		if err := checkNamespace(ctx, ref.Namespace, "Secret", ref.Name); err != nil {
			return cty.NilVal, err
		}
	}
	var api dynamic.ResourceInterface = s.dynamic.Resource(found.gvr)
	if found.namespaced {
		api = s.dynamic.Resource(found.gvr).Namespace(ref.Namespace)
	}
	object, err := api.Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && found.namespaced:
		return cty.NilVal, fmt.Errorf("%s %s not found in namespace %s", ref.Type, ref.Name, ref.Namespace)
	case apierrors.IsNotFound(err):
		return cty.NilVal, fmt.Errorf("%s %s not found", ref.Type, ref.Name)
	case err != nil:
		return cty.NilVal, fmt.Errorf("read %s: %w", ref, err)
	}
	v, err := valueOf(object, secret)
	if r := evaluationOf(ctx); err == nil && r != nil && r.workloads[change.WorkloadAddress(object.GetNamespace(), object.GetAPIVersion(), object.GetKind(), object.GetName())] {
		return withoutStatus(v), nil
	}
	return v, err
}

// withoutStatus returns a value with its status unknown.
func withoutStatus(v cty.Value) cty.Value {
	fields := v.AsValueMap()
	fields["status"] = cty.DynamicVal
	return cty.ObjectVal(fields)
}

// valueOf converts an object to a value. The data of a Secret is marked sensitive, and the annotation that
// may repeat it is left out.
func valueOf(object *unstructured.Unstructured, secret bool) (cty.Value, error) {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	if annotations := object.GetAnnotations(); annotations[corev1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, corev1.LastAppliedConfigAnnotation)
		object.SetAnnotations(annotations)
	}
	text, err := json.Marshal(object.Object)
	if err != nil {
		return cty.NilVal, err
	}
	ty, err := ctyjson.ImpliedType(text)
	if err != nil {
		return cty.NilVal, fmt.Errorf("convert %s %s to a value: %w", object.GetKind(), object.GetName(), err)
	}
	v, err := ctyjson.Unmarshal(text, ty)
	if err != nil {
		return cty.NilVal, fmt.Errorf("convert %s %s to a value: %w", object.GetKind(), object.GetName(), err)
	}
	if !secret {
		return v, nil
	}
	fields := v.AsValueMap()
	for _, name := range []string{"data", "stringData"} {
		if data, found := fields[name]; found {
			fields[name] = data.Mark(providerapi.Sensitive)
		}
	}
	return cty.ObjectVal(fields), nil
}

// apiResource is where objects of a kind are served.
type apiResource struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

func (s *Values) find(ctx context.Context, ref expr.Ref) (apiResource, error) {
	found, err := s.lookUp(ref)
	if err == nil || !errors.Is(err, errNoKind) {
		return found, err
	}
	// The kind may be newer than the cached discovery. One refresh for each evaluation is enough.
	if r := evaluationOf(ctx); r != nil {
		r.mu.Lock()
		again := r.rediscovered
		r.rediscovered = true
		r.mu.Unlock()
		if again {
			return found, err
		}
	}
	s.discovery.Invalidate()
	return s.lookUp(ref)
}

var errNoKind = errors.New("no such kind: check kubectl api-resources")

func (s *Values) lookUp(ref expr.Ref) (apiResource, error) {
	lists, err := s.lists(ref.APIVersion)
	var all []apiResource
	var groups []string
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, r := range list.APIResources {
			if r.Kind == ref.Type && !strings.Contains(r.Name, "/") && slices.Contains([]string(r.Verbs), "get") {
				all = append(all, apiResource{gvr: gv.WithResource(r.Name), namespaced: r.Namespaced})
				groups = append(groups, fmt.Sprintf("k8s[%q].%s", list.GroupVersion, ref.Type))
			}
		}
	}
	slices.Sort(groups)
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return apiResource{}, fmt.Errorf("%s is ambiguous: use %s", ref.Type, strings.Join(groups, " or "))
	case err != nil && !apierrors.IsNotFound(err):
		return apiResource{}, fmt.Errorf("discover kind %s: %w", ref.Type, err)
	case ref.APIVersion != "":
		return apiResource{}, fmt.Errorf("%s in %s: %w", ref.Type, ref.APIVersion, errNoKind)
	}
	return apiResource{}, fmt.Errorf("%s: %w", ref.Type, errNoKind)
}

func (s *Values) lists(groupVersion string) ([]*metav1.APIResourceList, error) {
	if groupVersion == "" {
		return discovery.ServerPreferredResources(s.discovery)
	}
	list, err := s.discovery.ServerResourcesForGroupVersion(groupVersion)
	if err != nil {
		return nil, err
	}
	return []*metav1.APIResourceList{list}, nil
}
