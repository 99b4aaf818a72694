package plans

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
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/contract"
	"github.com/atoll-dev/atoll/infra/plan"
	"github.com/atoll-dev/atoll/infra/reference"
)

// valueStore gives what expressions and arguments take from the API.
type valueStore struct {
	kube      kubernetes.Interface
	dynamic   dynamic.Interface
	discovery discovery.CachedDiscoveryInterface
}

// run is for whom values are: what a plan or an apply may read depends on where it is.
type run struct {
	namespace string
	// remember has each value read once: a plan is of one moment, as far as can be.
	remember bool

	mu         sync.Mutex
	secrets    map[[2]string]func() (*corev1.Secret, error)
	kubernetes map[reference.Ref]func() (cty.Value, error)
	// waiting are the workloads that the plan is of: what their clusters will say of them is not known yet.
	waiting map[plan.Address]bool
	// plan is what is carried out.
	plan string
	// rediscovered says that the kinds were looked up anew once.
	rediscovered bool
}

type runKey struct{}

// withRun gives a context whose values are for a plan or an apply of a namespace.
func withRun(ctx context.Context, namespace string, remember bool) context.Context {
	return context.WithValue(ctx, runKey{}, &run{
		namespace: namespace, remember: remember,
		secrets: map[[2]string]func() (*corev1.Secret, error){}, kubernetes: map[reference.Ref]func() (cty.Value, error){},
	})
}

// withWaiting says in such a context which workloads a plan is of.
func withWaiting(ctx context.Context, changes []*plan.Change) context.Context {
	if r := runOf(ctx); r != nil {
		r.waiting = map[plan.Address]bool{}
		for _, c := range changes {
			r.waiting[c.Address] = c.Action == plan.Place
		}
	}
	return ctx
}

func runOf(ctx context.Context) *run {
	r, _ := ctx.Value(runKey{}).(*run)
	return r
}

// recall gives what was read before in this run under a key, or reads it. Those who come at the same time wait for one answer.
func recall[K comparable, V any](r *run, held func(*run) map[K]func() (V, error), key K, read func() (V, error)) (V, error) {
	if r == nil || !r.remember {
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

func (s *valueStore) Secret(ctx context.Context, namespace, name, key string) ([]byte, error) {
	if err := own(ctx, namespace, "Secret", name); err != nil {
		return nil, err
	}
	secret, err := recall(runOf(ctx), func(r *run) map[[2]string]func() (*corev1.Secret, error) { return r.secrets }, [2]string{namespace, name}, func() (*corev1.Secret, error) {
		return s.kube.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("there is no Secret %s in namespace %s: create it, with the key %s", name, namespace, key)
	case err != nil:
		return nil, fmt.Errorf("read the Secret %s of namespace %s: %w", name, namespace, err)
	}
	value, there := secret.Data[key]
	if !there {
		keys := make([]string, 0, len(secret.Data))
		for k := range secret.Data {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		return nil, fmt.Errorf("the Secret %s has no key %q, but %s", name, key, listed(keys))
	}
	return value, nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none at all"
	}
	return strings.Join(names, ", ")
}

// own refuses what is secret of another namespace: who may write infrastructure here need not have any right there, and
// what reads it has all.
func own(ctx context.Context, namespace, kind, name string) error {
	if r := runOf(ctx); r != nil && r.namespace != "" && r.namespace != namespace {
		return fmt.Errorf("%s %s of namespace %s cannot be read from namespace %s: what is secret is for its own namespace", kind, name, namespace, r.namespace)
	}
	return nil
}

func (s *valueStore) Object(ctx context.Context, ref reference.Ref) (cty.Value, error) {
	return recall(runOf(ctx), func(r *run) map[reference.Ref]func() (cty.Value, error) { return r.kubernetes }, ref, func() (cty.Value, error) {
		return s.read(ctx, ref)
	})
}

func (s *valueStore) read(ctx context.Context, ref reference.Ref) (cty.Value, error) {
	found, err := s.find(ctx, ref)
	if err != nil {
		return cty.NilVal, err
	}
	if found.gvr.Group == v1alpha1.Group {
		return cty.NilVal, fmt.Errorf("%s: objects of %s cannot be referred to: refer to the resource itself", ref, v1alpha1.Group)
	}
	secret := found.gvr.GroupResource() == schema.GroupResource{Resource: "secrets"}
	if secret {
		if err := own(ctx, ref.Namespace, "Secret", ref.Name); err != nil {
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
		return cty.NilVal, fmt.Errorf("there is no %s %s in namespace %s", ref.Type, ref.Name, ref.Namespace)
	case apierrors.IsNotFound(err):
		return cty.NilVal, fmt.Errorf("there is no %s %s", ref.Type, ref.Name)
	case err != nil:
		return cty.NilVal, fmt.Errorf("read %s: %w", ref, err)
	}
	v, err := valueOf(object, secret)
	if r := runOf(ctx); err == nil && r != nil && r.waiting[plan.WorkloadAddress(object.GetNamespace(), object.GetAPIVersion(), object.GetKind(), object.GetName())] {
		return withoutStatus(v), nil
	}
	return v, err
}

// withoutStatus is a value of which the status is not known yet.
func withoutStatus(v cty.Value) cty.Value {
	fields := v.AsValueMap()
	fields["status"] = cty.DynamicVal
	return cty.ObjectVal(fields)
}

// valueOf is an object as a value. The data of a Secret is marked, and what may repeat it left out.
func valueOf(object *unstructured.Unstructured, secret bool) (cty.Value, error) {
	object = object.DeepCopy()
	object.SetManagedFields(nil)
	if notes := object.GetAnnotations(); notes[corev1.LastAppliedConfigAnnotation] != "" {
		delete(notes, corev1.LastAppliedConfigAnnotation)
		object.SetAnnotations(notes)
	}
	text, err := json.Marshal(object.Object)
	if err != nil {
		return cty.NilVal, err
	}
	ty, err := ctyjson.ImpliedType(text)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s %s cannot be taken for a value: %w", object.GetKind(), object.GetName(), err)
	}
	v, err := ctyjson.Unmarshal(text, ty)
	if err != nil {
		return cty.NilVal, fmt.Errorf("%s %s cannot be taken for a value: %w", object.GetKind(), object.GetName(), err)
	}
	if !secret {
		return v, nil
	}
	fields := v.AsValueMap()
	for _, name := range []string{"data", "stringData"} {
		if data, there := fields[name]; there {
			fields[name] = data.Mark(contract.Sensitive)
		}
	}
	return cty.ObjectVal(fields), nil
}

// served is where objects of a kind are.
type served struct {
	gvr        schema.GroupVersionResource
	namespaced bool
}

func (s *valueStore) find(ctx context.Context, ref reference.Ref) (served, error) {
	found, err := s.lookUp(ref)
	if err == nil || !errors.Is(err, errNoKind) {
		return found, err
	}
	// It may be younger than what is remembered. Once in each run is enough.
	if r := runOf(ctx); r != nil {
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

var errNoKind = errors.New("the API has no such kind: look at kubectl api-resources")

func (s *valueStore) lookUp(ref reference.Ref) (served, error) {
	lists, err := s.lists(ref.APIVersion)
	var all []served
	var groups []string
	for _, list := range lists {
		gv, parseErr := schema.ParseGroupVersion(list.GroupVersion)
		if parseErr != nil {
			continue
		}
		for _, r := range list.APIResources {
			if r.Kind == ref.Type && !strings.Contains(r.Name, "/") && slices.Contains([]string(r.Verbs), "get") {
				all = append(all, served{gvr: gv.WithResource(r.Name), namespaced: r.Namespaced})
				groups = append(groups, fmt.Sprintf("k8s[%q].%s", list.GroupVersion, ref.Type))
			}
		}
	}
	slices.Sort(groups)
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return served{}, fmt.Errorf("%s is in more than one group: write %s", ref.Type, strings.Join(groups, " or "))
	case err != nil && !apierrors.IsNotFound(err):
		return served{}, fmt.Errorf("find out where %s is served: %w", ref.Type, err)
	case ref.APIVersion != "":
		return served{}, fmt.Errorf("%s in %s: %w", ref.Type, ref.APIVersion, errNoKind)
	}
	return served{}, fmt.Errorf("%s: %w", ref.Type, errNoKind)
}

func (s *valueStore) lists(groupVersion string) ([]*metav1.APIResourceList, error) {
	if groupVersion == "" {
		return discovery.ServerPreferredResources(s.discovery)
	}
	list, err := s.discovery.ServerResourcesForGroupVersion(groupVersion)
	if err != nil {
		return nil, err
	}
	return []*metav1.APIResourceList{list}, nil
}
