package apiserver

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
)

// nodesElsewhere is upstream's storage of nodes, together with the nodes of member clusters. These are only read.
type nodesElsewhere struct {
	*nodestore.REST
	mergedReads
}

// eventsElsewhere is upstream's storage of events, together with those in member clusters about pods and objects of this
// workspace. These are only read.
type eventsElsewhere struct {
	*eventstore.REST
	mergedReads
}

var (
	_ rest.StandardStorage = nodesElsewhere{}
	_ rest.StandardStorage = eventsElsewhere{}
)

func newNodesElsewhere(stored *nodestore.REST, elsewhere Elsewhere) nodesElsewhere {
	return nodesElsewhere{stored, mergedReads{
		resource: "nodes", elsewhere: elsewhere, stored: stored,
		internal: func() runtime.Object { return &api.Node{} }, internalList: func() runtime.Object { return &api.NodeList{} },
		external: func() runtime.Object { return &corev1.Node{} }, externalList: func() runtime.Object { return &corev1.NodeList{} },
	}}
}

func newEventsElsewhere(stored *eventstore.REST, elsewhere Elsewhere) eventsElsewhere {
	return eventsElsewhere{stored, mergedReads{
		resource: "events", elsewhere: elsewhere, stored: stored,
		internal: func() runtime.Object { return &api.Event{} }, internalList: func() runtime.Object { return &api.EventList{} },
		external: func() runtime.Object { return &corev1.Event{} }, externalList: func() runtime.Object { return &corev1.EventList{} },
	}}
}

func (n nodesElsewhere) Update(ctx context.Context, name string, change rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc, allowCreate bool, o *metav1.UpdateOptions) (runtime.Object, bool, error) {
	obj, created, err := n.REST.Update(ctx, name, change, create, update, allowCreate, o)
	if !apierrors.IsNotFound(err) {
		return obj, created, err
	}
	return nil, false, n.refusal(ctx, name, err)
}

func (n nodesElsewhere) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	obj, done, err := n.REST.Delete(ctx, name, validate, o)
	if !apierrors.IsNotFound(err) {
		return obj, done, err
	}
	return nil, false, n.refusal(ctx, name, err)
}

// refusal returns why a node is not changed, if a cluster has it.
func (n nodesElsewhere) refusal(ctx context.Context, name string, missing error) error {
	if seesStoreAlone(ctx, n.elsewhere) {
		return missing
	}
	if _, err := n.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return err
	}
	cluster, node, _ := strings.Cut(name, ".")
	return apierrors.NewForbidden(corev1.Resource("nodes"), name, fmt.Errorf("Atoll does not change nodes: change node %s with the kubeconfig of cluster %s, "+
		"or keep new workloads out of the whole cluster with `atoll cordon %s`", node, cluster, cluster))
}
