package join

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/names"
)

const (
	// readMemberTimeout limits one request to a member.
	readMemberTimeout = 30 * time.Second
	// readMemberItems limits how many objects of a kind are read from a member to find those that go with others.
	readMemberItems = 20_000
)

// Member reads the objects of a cluster of the fleet.
type Member struct {
	Cluster string
	object  *v1alpha1.Cluster
	client  dynamic.Interface
}

// OpenMember returns a reader of a cluster, after it has checked that the cluster is the one that joined under
// the name. own is how to reach it; nil means the kubeconfig that is stored in Atoll, for which the user needs
// permission to read its Secret.
func OpenMember(ctx context.Context, atoll dynamic.Interface, name string, own *rest.Config) (*Member, error) {
	cluster, err := readCluster(ctx, atoll, name)
	if err != nil {
		return nil, err
	}
	config := own
	if own == nil {
		access, err := fleet.ReadAccess(ctx, atoll, name)
		if err != nil {
			return nil, fmt.Errorf("%w: to read the cluster with a kubeconfig of your own, set --member-kubeconfig", err)
		}
		config = access.REST
	}
	config = rest.CopyConfig(config)
	config.Timeout, config.QPS = readMemberTimeout, -1
	fleet.BoundAnswers(config)
	id, _, err := probeMember(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to cluster %s: %w", name, err)
	}
	if err := checkMemberID(cluster, id, own != nil); err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for cluster %s: %w", name, err)
	}
	return &Member{name, cluster, client}, nil
}

func readCluster(ctx context.Context, atoll dynamic.Interface, name string) (*v1alpha1.Cluster, error) {
	api := atoll.Resource(v1alpha1.ClusterResource)
	u, err := api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		list, err := api.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the clusters: %w", err)
		}
		var joined []string
		for i := range list.Items {
			joined = append(joined, list.Items[i].GetName())
		}
		return nil, names.NoSuchCluster(name, joined)
	}
	if err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	cluster := &v1alpha1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, cluster); err != nil {
		return nil, fmt.Errorf("read Cluster %s: %w", name, err)
	}
	if cluster.DeletionTimestamp != nil {
		return nil, fmt.Errorf("cluster %s is leaving: join it again first", name)
	}
	return cluster, nil
}

// whyWaiting returns why a cluster gets no new objects now, "" if it does.
func whyWaiting(cluster *v1alpha1.Cluster) string {
	switch {
	case cluster.Spec.Unschedulable:
		return "it is cordoned: set its spec.unschedulable to false"
	case !meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.ClusterReady):
		return fmt.Sprintf("it is not Ready: see `kubectl describe cluster %s`", cluster.Name)
	}
	return ""
}

// checkMemberID rejects a cluster that is not the one that joined under a name. own is set if the user said
// how to reach it: then the IDs must be known.
func checkMemberID(cluster *v1alpha1.Cluster, id string, own bool) error {
	known := cluster.Status.ID
	switch {
	case known == "" && (own || id != ""):
		return fmt.Errorf("the ID of cluster %s is not known yet, so it cannot be compared: wait until `kubectl get cluster %s` shows that it is Ready", cluster.Name, cluster.Name)
	case known != "" && id == "":
		return fmt.Errorf("the kubeconfig may not read namespace kube-system, whose UID identifies cluster %s: use one that may", cluster.Name)
	case known != id:
		return fmt.Errorf("the kubeconfig leads to another cluster than %s: its namespace kube-system has UID %s, not %s: use a kubeconfig of %s", cluster.Name, id, known, cluster.Name)
	}
	return nil
}

var (
	errNotInMember = errors.New("does not exist in the cluster")
	errTooMany     = errors.New("the cluster has too many objects: name them instead")
)

// absentError is the errNotInMember of an object or a type, with the next step.
type absentError string

func (e absentError) Error() string        { return string(e) }
func (e absentError) Is(target error) bool { return target == errNotInMember }

// get reads an object. It returns errNotInMember if the object does not exist.
func (m *Member) get(ctx context.Context, resource schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	obj, err := m.client.Resource(resource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	return obj, m.explain(err, resource, namespace, name)
}

// list reads the objects of a kind that match a selector; of all namespaces if namespace is "".
func (m *Member) list(ctx context.Context, resource schema.GroupVersionResource, namespace string, selector labels.Selector) ([]unstructured.Unstructured, error) {
	var out []unstructured.Unstructured
	err := fleet.EachPage(ctx, metav1.ListOptions{LabelSelector: selector.String()}, m.client.Resource(resource).Namespace(namespace).List, func(page *unstructured.UnstructuredList) (more bool, err error) {
		if out = append(out, page.Items...); len(out) > readMemberItems {
			return false, fmt.Errorf("%w: it has more than %d %s", errTooMany, readMemberItems, resource.GroupResource())
		}
		return true, nil
	})
	if err != nil && !errors.Is(err, errTooMany) {
		return nil, m.explain(err, resource, namespace, "")
	}
	return out, err
}

// explain names the cluster in the error of a request. A 404 without the name of an object means that the
// cluster does not serve the type.
func (m *Member) explain(err error, resource schema.GroupVersionResource, namespace, name string) error {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case apierrors.IsNotFound(err) && errors.As(err, &status) && name != "" && status.Status().Details != nil && status.Status().Details.Name == name:
		return absentError(fmt.Sprintf("cluster %s does not have it: run `%s` with a kubeconfig of %s to list its objects, and correct the name, -n or --from",
			m.Cluster, listCommand(resource.GroupResource(), namespace), m.Cluster))
	case apierrors.IsNotFound(err):
		return absentError(fmt.Sprintf("cluster %s does not serve %s in version %s: run `kubectl api-resources` with a kubeconfig of %s to list its kinds, and correct the kind or --from",
			m.Cluster, resource.GroupResource(), resource.Version, m.Cluster))
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the kubeconfig of cluster %s may not read %s: %w", m.Cluster, resource.GroupResource(), err)
	}
	return fmt.Errorf("read %s in cluster %s: %w", resource.GroupResource(), m.Cluster, err)
}

// listCommand returns the kubectl command that lists the objects of a type; of a cluster-scoped one if namespace is "".
func listCommand(resource schema.GroupResource, namespace string) string {
	if namespace == "" {
		return "kubectl get " + resource.String()
	}
	return "kubectl get " + resource.String() + " -n " + namespace
}
