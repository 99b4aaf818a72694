package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// podsElsewhere is upstream's storage of pods, together with the pods in member clusters.
type podsElsewhere struct {
	*podstore.REST
	mergedReads
}

var (
	_ rest.StandardStorage    = podsElsewhere{}
	_ rest.ShortNamesProvider = podsElsewhere{}
)

func newPodsElsewhere(stored *podstore.REST, elsewhere Elsewhere) podsElsewhere {
	return podsElsewhere{stored, mergedReads{
		resource: "pods", elsewhere: elsewhere, stored: stored,
		internal: func() runtime.Object { return &api.Pod{} }, internalList: func() runtime.Object { return &api.PodList{} },
		external: func() runtime.Object { return &corev1.Pod{} }, externalList: func() runtime.Object { return &corev1.PodList{} },
	}}
}

func (p podsElsewhere) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, done, err := p.REST.Delete(ctx, name, validate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, p.elsewhere) {
		return obj, done, err
	}
	before, err := p.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	if validate != nil {
		if err := validate(ctx, before); err != nil {
			return nil, false, err
		}
	}
	options := *o
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{UID: &before.(*api.Pod).UID}
	}
	pod, err := p.elsewhere.DeletePod(ctx, request.NamespaceValue(ctx), name, options)
	if err != nil {
		return nil, false, err
	}
	obj, err = convert(pod, &api.Pod{})
	return obj, false, err
}

func (p podsElsewhere) Update(ctx context.Context, name string, change rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, created, err := p.REST.Update(ctx, name, change, create, update, allowCreate, o)
	if !apierrors.IsNotFound(err) || seesStoreAlone(ctx, p.elsewhere) {
		return obj, created, err
	}
	obj, err = updateElsewhere(ctx, p.elsewhere, name, "", change, update, o)
	return obj, false, err
}

// updateElsewhere changes a pod in a member cluster. Admission of the workspace and of the cluster decide about it.
func updateElsewhere(ctx context.Context, elsewhere Elsewhere, name, subresource string, change rest.UpdatedObjectInfo, validate rest.ValidateObjectUpdateFunc, o *metav1.UpdateOptions) (runtime.Object, error) {
	pod, err := elsewhere.UpdatePod(ctx, request.NamespaceValue(ctx), name, subresource, func(before *corev1.Pod) (*corev1.Pod, error) {
		old, err := convert(before, &api.Pod{})
		if err != nil {
			return nil, err
		}
		after, err := change.UpdatedObject(ctx, old)
		if err != nil {
			return nil, err
		}
		if validate != nil {
			if err := validate(ctx, after.DeepCopyObject(), old.DeepCopyObject()); err != nil {
				return nil, err
			}
		}
		return convert(after, &corev1.Pod{})
	}, *o)
	if err != nil {
		return nil, err
	}
	return convert(pod, &api.Pod{})
}

// clusterColumn is the column with the cluster of a pod, with -o wide.
func clusterColumn() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Cluster", Type: "string", Priority: 1, Description: "The member cluster that runs the pod."}
}

// ConvertToTable adds the cluster of each pod to upstream's columns.
func (p podsElsewhere) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table, err := p.REST.ConvertToTable(ctx, object, options)
	if err != nil || seesStoreAlone(ctx, p.elsewhere) {
		return table, err
	}
	if len(table.ColumnDefinitions) > 0 {
		table.ColumnDefinitions = append(table.ColumnDefinitions, clusterColumn())
	}
	for i := range table.Rows {
		cluster := ""
		if pod, err := meta.Accessor(table.Rows[i].Object.Object); err == nil {
			cluster = pod.GetLabels()[v1alpha1.ClusterLabel]
		}
		table.Rows[i].Cells = append(table.Rows[i].Cells, cluster)
	}
	return table, nil
}
