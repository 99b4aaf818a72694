package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	metricsv1beta1client "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"

	"github.com/atoll-dev/atoll/fleet"
)

// usage is how the metrics of pods or nodes are read and shown. The metrics name their object, and have no owners: the objects
// decide which are shown.
type usage struct {
	kind    kind // of the objects, which are read as metadata
	name    string
	newList func() runtime.Object
	list    func(ctx context.Context, c metricsv1beta1client.MetricsV1beta1Interface, namespace string, o metav1.ListOptions) (runtime.Object, error)
	// shown returns the metrics of an object with these metadata. Other parts of the cluster's answer are not passed on.
	shown func(metrics object, as metav1.ObjectMeta) object
}

const namespaceField = "metadata.namespace"

func usages() map[string]usage {
	metadata := func(k kind) kind {
		k.metadataOnly = true
		k.new, k.newList = func() object { return &metav1.PartialObjectMetadata{} }, func() runtime.Object { return &metav1.PartialObjectMetadataList{} }
		return k
	}
	return map[string]usage{
		Pods: {
			kind: metadata(kind{resource: Pods, belongs: podReached, show: label, fieldsOf: func(object) map[string]string { return nil }}),
			name: "metrics of pods", newList: func() runtime.Object { return &metricsv1beta1.PodMetricsList{} },
			list: func(ctx context.Context, c metricsv1beta1client.MetricsV1beta1Interface, namespace string, o metav1.ListOptions) (runtime.Object, error) {
				return c.PodMetricses(namespace).List(ctx, o)
			},
			shown: func(metrics object, as metav1.ObjectMeta) object {
				from := metrics.(*metricsv1beta1.PodMetrics)
				out := &metricsv1beta1.PodMetrics{ObjectMeta: as, Timestamp: from.Timestamp, Window: from.Window, Containers: []metricsv1beta1.ContainerMetrics{}}
				for _, c := range from.Containers {
					if len(validation.IsDNS1123Label(c.Name)) == 0 {
						out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: plausible(c.Usage)})
					}
				}
				return out
			},
		},
		Nodes: {
			kind: metadata(kind{
				resource: Nodes, judged: []string{nameField, namespaceField}, show: showNode,
				belongs:  func(context.Context, *member, object) (bool, error) { return true, nil },
				fieldsOf: func(obj object) map[string]string { return map[string]string{nameField: obj.GetName()} },
			}),
			name: "metrics of nodes", newList: func() runtime.Object { return &metricsv1beta1.NodeMetricsList{} },
			list: func(ctx context.Context, c metricsv1beta1client.MetricsV1beta1Interface, _ string, o metav1.ListOptions) (runtime.Object, error) {
				return c.NodeMetricses().List(ctx, o)
			},
			shown: func(metrics object, as metav1.ObjectMeta) object {
				from := metrics.(*metricsv1beta1.NodeMetrics)
				return &metricsv1beta1.NodeMetrics{ObjectMeta: as, Timestamp: from.Timestamp, Window: from.Window, Usage: plausible(from.Usage)}
			},
		},
	}
}

// maxResources bounds the resources in the metrics of an object. They become columns of tables.
const maxResources = 16

// plausible returns the amounts that a cluster can measure: of resources with valid names, and none below 0.
func plausible(of corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, amount := range of {
		if len(out) < maxResources && amount.Sign() >= 0 && len(validation.IsQualifiedName(string(name))) == 0 {
			out[name] = amount
		}
	}
	return out
}

// Metrics returns the metrics of the pods or nodes of all clusters that are shown, as the clusters' own APIs have them. warnings
// name the clusters whose metrics are missing, and why.
func (r *Reach) Metrics(ctx context.Context, resource, namespace string, o metav1.ListOptions) (list runtime.Object, warnings []string, err error) {
	u, known := r.usages[resource]
	if !known {
		return nil, nil, apierrors.NewBadRequest(resource + " have no metrics")
	}
	q, err := parseQuery(u.kind, namespace, o)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	parts, missing, err := r.ask(ctx, q, func(ctx context.Context, m *member) part { return m.usage(ctx, u, q) })
	if err != nil {
		return nil, nil, err
	}
	var items []runtime.Object
	for _, part := range parts {
		if errors.Is(part.err, errManyObjects) || len(items)+len(part.objects) > maxObjects {
			return nil, nil, apierrors.NewRequestEntityTooLargeError(errManyObjects.Error())
		}
		if part.err != nil {
			missing[part.source] = part.err.Error()
		}
		for _, obj := range part.objects {
			items = append(items, obj)
		}
	}
	slices.SortStableFunc(items, func(a, b runtime.Object) int {
		return cmp.Or(strings.Compare(a.(object).GetNamespace(), b.(object).GetNamespace()), strings.Compare(a.(object).GetName(), b.(object).GetName()))
	})
	list = u.newList()
	return list, warningsOf(u.name, missing), meta.SetList(list, items)
}

// MetricsOf returns the metrics of a pod or a node. Of pods with one name it is the newest, as for Get.
func (r *Reach) MetricsOf(ctx context.Context, resource, namespace, name string) (runtime.Object, []string, error) {
	u, known := r.usages[resource]
	if !known {
		return nil, nil, apierrors.NewBadRequest(resource + " have no metrics")
	}
	f, warnings, err := r.find(ctx, r.kinds[resource], namespace, name)
	if err != nil {
		return nil, nil, err
	}
	q := queryOf(u.kind, namespace)
	q.memberFields = fields.OneTermEqualSelector(nameField, f.obj.GetName())
	got := r.askOne(ctx, f.cluster, func(ctx context.Context, m *member) part { return m.usage(ctx, u, q) })
	if got.err != nil {
		return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("the metrics of %s %q are missing: cluster %s: %v", resource, name, f.cluster, got.err))
	}
	for _, obj := range got.objects {
		if obj.GetName() == name { // a cluster may ignore selectors
			return obj, warnings, nil
		}
	}
	missing := apierrors.NewNotFound(metricsv1beta1.Resource(resource), name)
	missing.ErrStatus.Message += fmt.Sprintf(": cluster %s has no metrics of it yet: wait a minute after its start, then look at the log of metrics-server there", f.cluster)
	return nil, nil, missing
}

// usage returns the metrics of the objects in a cluster that are shown. A cluster without such objects is not asked for metrics.
func (m *member) usage(ctx context.Context, u usage, q query) part {
	shown := m.list(ctx, q)
	if shown.err != nil || len(shown.objects) == 0 {
		return shown
	}
	seen, metrics := 0, []object{}
	err := fleet.EachPage(ctx, q.options(m.cluster), func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return u.list(ctx, m.metrics, q.namespace, o)
	}, func(page runtime.Object) (bool, error) {
		items, _, err := itemsOf(page)
		if seen += len(items); seen > maxObjects {
			return false, errManyObjects
		}
		metrics = append(metrics, items...)
		return true, err
	})
	return part{objects: join(u, m.cluster, shown.objects, metrics), err: withRemedy(err)}
}

// join returns the metrics of the objects that are shown, with the names and labels of these. A cluster decides neither which
// objects are shown nor how often.
func join(u usage, cluster string, shown, metrics []object) (out []object) {
	objects := make(map[types.NamespacedName]object, len(shown))
	for _, obj := range shown {
		objects[types.NamespacedName{Namespace: obj.GetNamespace(), Name: u.kind.ownName(cluster, obj.GetName())}] = obj
	}
	for _, of := range metrics {
		key := types.NamespacedName{Namespace: of.GetNamespace(), Name: of.GetName()}
		obj, is := objects[key]
		if !is {
			continue
		}
		delete(objects, key)
		out = append(out, u.shown(of, metav1.ObjectMeta{Namespace: obj.GetNamespace(), Name: obj.GetName(), Labels: obj.GetLabels(), CreationTimestamp: of.GetCreationTimestamp()}))
	}
	return out
}

// withRemedy adds to an error of a cluster's API of metrics what its administrator can do.
func withRemedy(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return errors.New("it does not serve metrics.k8s.io/v1beta1: install metrics-server there")
	case apierrors.IsServiceUnavailable(err):
		return fmt.Errorf("look at `kubectl get apiservice v1beta1.metrics.k8s.io` there, and at the log of metrics-server: %w", err)
	}
	return err
}
