package test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// comparison holds the applied objects and compares their states in the clusters.
type comparison struct {
	clients map[string]dynamic.Interface
	mapper  meta.ResettableRESTMapper
	objects []applied
	sets    []appSet
}

// applied is one object of a set.
type applied struct {
	set appSet
	*unstructured.Unstructured
}

// id names the object within all sets.
func (a applied) id() string { return a.set.name + " " + a.GetKind() + "/" + a.GetName() }

func newComparison(t *testing.T, f *fixture) *comparison {
	t.Helper()
	c := &comparison{clients: map[string]dynamic.Interface{}}
	for _, cluster := range append([]string{"atoll", alone}, members...) {
		client, err := dynamic.NewForConfig(f.rest(t, cluster))
		if err != nil {
			t.Fatal(err)
		}
		c.clients[cluster] = client
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(f.client(t, alone).Discovery()))
	return c
}

func (c *comparison) add(set appSet, objects []*unstructured.Unstructured) {
	c.sets = append(c.sets, set)
	for _, o := range objects {
		c.objects = append(c.objects, applied{set, o})
	}
}

// get reads the object in one cluster; nil if it is not there.
func (c *comparison) get(ctx context.Context, cluster string, a applied) (*unstructured.Unstructured, error) {
	gvk := a.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		c.mapper.Reset()
		return nil, err
	}
	var client dynamic.ResourceInterface = c.clients[cluster].Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		client = c.clients[cluster].Resource(mapping.Resource).Namespace(a.namespace())
	}
	o, err := client.Get(ctx, a.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // nor if the member does not serve the kind
	}
	return o, err
}

func (a applied) namespace() string {
	if n := a.GetNamespace(); n != "" {
		return n
	}
	return a.set.namespace
}

// pods gives all pods of a set in one cluster.
func (c *comparison) pods(ctx context.Context, cluster string, set appSet) ([]corev1.Pod, error) {
	var out []corev1.Pod
	for _, namespace := range namespacesOf([]appSet{set}) {
		list, err := c.clients[cluster].Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			var pod corev1.Pod
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &pod); err != nil {
				return nil, err
			}
			out = append(out, pod)
		}
	}
	return out, nil
}

// settledAlone returns an error while any directly applied object is not ready.
func (c *comparison) settledAlone(ctx context.Context) error {
	for _, a := range c.objects {
		o, err := c.get(ctx, alone, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.id(), err)
		}
		if o == nil {
			return fmt.Errorf("%s is not there", a.id())
		}
		if why := unready(o); why != "" {
			return fmt.Errorf("%s: %s", a.id(), why)
		}
	}
	return nil
}

// settle compares until only known exceptions differ or ctx ends, and returns the last result.
func (c *comparison) settle(ctx context.Context) *comparisonResult {
	known := appExceptions()
	for {
		// Whatever ctx says: a look is not broken off.
		result := c.look(context.WithoutCancel(ctx))
		if len(result.complaints(known)) == 0 {
			return result
		}
		select {
		case <-ctx.Done():
			return result
		case <-time.After(time.Second):
		}
	}
}

// look compares everything once.
func (c *comparison) look(ctx context.Context) *comparisonResult {
	result := &comparisonResult{sets: map[string]*setResult{}}
	for _, set := range c.sets {
		result.order = append(result.order, set.name)
		result.sets[set.name] = &setResult{pods: c.comparePods(ctx, set), kinds: map[string]bool{}}
	}
	verdicts := make([]string, len(c.objects))
	var all sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i, a := range c.objects {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			verdicts[i] = c.compare(ctx, a)
		})
	}
	all.Wait()
	for i, a := range c.objects {
		set := result.sets[a.set.name]
		set.objects++
		set.kinds[a.GroupVersionKind().GroupKind().String()] = true
		if verdicts[i] == "" {
			set.same++
		} else {
			set.exceptions = append(set.exceptions, exception{a.id(), verdicts[i]})
		}
	}
	return result
}

// compare says how an object in the members differs from the one that was applied
// directly, or "".
func (c *comparison) compare(ctx context.Context, a applied) string {
	direct, err := c.get(ctx, alone, a)
	if err != nil || direct == nil {
		return fmt.Sprintf("cannot be compared: %v", err)
	}
	own, err := c.get(ctx, "atoll", a)
	if err != nil || own == nil {
		return fmt.Sprintf("Atoll does not have it: %v", err)
	}
	copies := map[string]*unstructured.Unstructured{}
	for _, m := range members {
		o, err := c.get(ctx, m, a)
		if err != nil {
			return fmt.Sprintf("%s cannot be asked: %v", m, err)
		}
		if o != nil {
			copies[m] = o
		}
	}
	if len(copies) == 0 {
		return "no member has it" + c.placement(ctx, a)
	}
	for _, m := range members {
		if o := copies[m]; o != nil {
			if where := differs(direct, o); where != "" {
				return "in " + m + " " + where
			}
		}
	}
	return compareStates(direct, own, copies)
}

// placement is what Atoll's binding says about an object that is nowhere.
func (c *comparison) placement(ctx context.Context, a applied) string {
	for _, resource := range []string{"resourcebindings", "clusterresourcebindings"} {
		gvr := clustersResource.GroupVersion().WithResource(resource)
		list, err := c.clients["atoll"].Resource(gvr).List(ctx, metav1.ListOptions{})
		if err != nil {
			continue // this Atoll may have only one of them
		}
		for _, b := range list.Items {
			kind, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "kind")
			name, _, _ := unstructured.NestedString(b.Object, "spec", "resource", "name")
			if kind != a.GetKind() || name != a.GetName() || b.GetNamespace() != "" && b.GetNamespace() != a.namespace() {
				continue
			}
			return ": " + bindingSays(&b)
		}
	}
	return ": nothing binds it"
}

func bindingSays(b *unstructured.Unstructured) string {
	var said []string
	for _, list := range []string{"conditions", "clusters"} {
		entries, _, _ := unstructured.NestedSlice(b.Object, "status", list)
		for _, e := range entries {
			if entry, ok := e.(map[string]any); ok && entry["message"] != nil {
				said = append(said, fmt.Sprintf("%v %v: %v", entry["name"], entry["reason"], entry["message"]))
			}
		}
	}
	return strings.Join(said, "; ")
}

// evidence logs details of the first unexpected differences: the object in each cluster, its field managers
// with times, and its events.
func (c *comparison) evidence(t *testing.T, result *comparisonResult, known map[string]string) {
	t.Helper()
	const most = 3
	shown := 0
	for _, a := range c.objects {
		differs := slices.ContainsFunc(result.sets[a.set.name].exceptions, func(e exception) bool { return e.id == a.id() })
		if _, ok := known[a.id()]; ok || !differs || shown == most {
			continue
		}
		shown++
		for _, cluster := range append([]string{"atoll", alone}, members...) {
			o, err := c.get(t.Context(), cluster, a)
			if err != nil || o == nil {
				t.Logf("%s in %s: %v", a.id(), cluster, err)
				continue
			}
			fields := o.GetManagedFields()
			for i := range fields {
				fields[i].FieldsV1 = nil
			}
			o.SetManagedFields(fields)
			t.Logf("%s in %s: %s", a.id(), cluster, asJSON(o.Object))
			c.happened(t, cluster, a)
		}
	}
}

// happened logs the events about an object in one cluster.
func (c *comparison) happened(t *testing.T, cluster string, a applied) {
	t.Helper()
	list, err := c.clients[cluster].Resource(corev1.SchemeGroupVersion.WithResource("events")).Namespace(a.namespace()).
		List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + a.GetName()})
	if err != nil {
		t.Log(err)
		return
	}
	for _, e := range list.Items {
		t.Logf("  %v x%v %v %v: %v", e.Object["lastTimestamp"], e.Object["count"], e.GetName(), e.Object["reason"], e.Object["message"])
	}
}

// comparePods compares how many pods there are that do their work: in all members
// together, as many as directly; and of DaemonSets on each member's nodes.
func (c *comparison) comparePods(ctx context.Context, set appSet) podsResult {
	var out podsResult
	count := func(cluster string, ready, perNode *int) error {
		pods, err := c.pods(ctx, cluster, set)
		for _, pod := range pods {
			done := pod.Status.Phase == corev1.PodSucceeded
			for _, condition := range pod.Status.Conditions {
				done = done || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
			}
			owner := metav1.GetControllerOf(&pod)
			switch {
			case !done:
			case owner != nil && owner.Kind == "DaemonSet":
				*perNode++
			default:
				*ready++
			}
		}
		return err
	}
	errs := []error{count(alone, &out.direct, &out.directPerNode)}
	for _, m := range members {
		errs = append(errs, count(m, &out.members, &out.membersPerNode))
	}
	if err := errors.Join(errs...); err != nil {
		out.why = err.Error()
	}
	return out
}
