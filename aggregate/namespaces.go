package aggregate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

const (
	// provideTimeout bounds the requests to a member, because a client is waiting.
	provideTimeout = 2 * time.Second
	// providedTTL is how long it is remembered that nothing is to be done about a
	// namespace of a member.
	providedTTL = 10 * time.Minute
	// provideRetry is how long a member that did not answer is left alone, so that not
	// every write waits for it.
	provideRetry = 30 * time.Second
	// maxProvided limits how many namespaces are remembered.
	maxProvided = 50_000
)

// NamespacesFunc returns a client for the namespaces of the workspace.
type NamespacesFunc func() (corev1client.NamespaceInterface, error)

// MetadataFunc returns the labels and annotations that a namespace of a member needs,
// from those of the workspace's.
type MetadataFunc func(*corev1.Namespace) (labels, annotations map[string]string)

// MemberNamespaces creates namespaces in members. An operator records events about a
// shared object in its own cluster, whose API server rejects events in a namespace that
// it does not have. So the member gets the namespace when the first user writes an
// object of it through that member.
//
// Each member gets a namespace once. If someone deletes it there, it stays deleted:
// the workspace's namespace names the members in ProvidedInAnnotation.
type MemberNamespaces struct {
	workspace NamespacesFunc
	metadata  MetadataFunc
	members   *perMember[corev1client.NamespaceInterface]
	// settled has the namespaces about which nothing is to be done for a while.
	settled *cache.LRUExpireCache
	// timeout bounds the requests that one write causes.
	timeout time.Duration
}

// settledKey is a namespace of a member, or the whole member if namespace is empty.
type settledKey struct{ cluster, digest, namespace string }

// NewMemberNamespaces returns a MemberNamespaces that connects to members by reach.
func NewMemberNamespaces(workspace NamespacesFunc, metadata MetadataFunc, reach ClientConfigFunc, clk clock.PassiveClock) *MemberNamespaces {
	return &MemberNamespaces{
		workspace: workspace,
		metadata:  metadata,
		members:   newPerMember(reach, newNamespaceClient, clk),
		settled:   cache.NewLRUExpireCacheWithClock(maxProvided, clk),
		timeout:   provideTimeout,
	}
}

func newNamespaceClient(cfg *rest.Config) (corev1client.NamespaceInterface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1 // answers are remembered, and a member's server protects itself
	cfg.UserAgent = "atoll-namespaces"
	client, err := corev1client.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return client.Namespaces(), nil
}

// IsControlPlaneUser reports whether a user of a member, by its name in the workspace,
// is one of the controllers that every cluster has. They write to objects of all
// namespaces without recording events about them.
func IsControlPlaneUser(cluster, name string) bool {
	inMember := strings.TrimPrefix(name, cluster+":")
	return strings.HasPrefix(inMember, controllerAccount) || inMember == "system:kube-controller-manager"
}

// Provide creates a namespace in a member unless the member has it or has had it from
// here. It returns an error if the member does not answer; the next attempt is made
// after 30 s.
func (n *MemberNamespaces) Provide(ctx context.Context, cluster, namespace string) error {
	// A client that goes away says nothing about the member.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.timeout)
	defer cancel()
	if _, unreachable := n.settled.Get(settledKey{cluster: cluster}); unreachable {
		return nil
	}
	member, digest, err := n.members.get(ctx, cluster)
	if err == nil {
		key := settledKey{cluster, digest, namespace}
		if _, ok := n.settled.Get(key); ok {
			return nil
		}
		var settled bool
		if settled, err = n.provide(ctx, member, cluster, namespace); settled {
			n.settled.Add(key, true, providedTTL)
		}
	}
	if err != nil {
		n.settled.Add(settledKey{cluster: cluster}, true, provideRetry)
		return fmt.Errorf("provide namespace %s in cluster %s: %w", namespace, cluster, err)
	}
	return nil
}

// provide reports whether nothing is to be done about the namespace for a while.
func (n *MemberNamespaces) provide(ctx context.Context, member corev1client.NamespaceInterface, cluster, name string) (settled bool, err error) {
	live, err := member.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return live.DeletionTimestamp == nil, nil
	}
	if !apierrors.IsNotFound(err) {
		return false, err
	}
	workspace, err := n.workspace()
	if err != nil {
		return false, err
	}
	from, err := workspace.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil // deleted meanwhile
	}
	if err != nil {
		return false, err
	}
	if from.DeletionTimestamp != nil || slices.Contains(providedIn(from), cluster) {
		return true, nil
	}
	_, err = member.Create(ctx, n.forMember(from, cluster), metav1.CreateOptions{FieldManager: v1alpha1.SyncerFieldManager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return true, nil
	case err != nil:
		return false, err
	}
	klog.InfoS("created the namespace of a shared object in the member cluster, for events about it", "cluster", cluster, "namespace", name)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if from, err = workspace.Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if from.Annotations == nil {
			from.Annotations = map[string]string{}
		}
		from.Annotations[v1alpha1.ProvidedInAnnotation] = strings.Join(append(providedIn(from), cluster), ",")
		_, err = workspace.Update(ctx, from, metav1.UpdateOptions{FieldManager: "atoll-namespaces"})
		return err
	})
	if err != nil {
		// The member has the namespace. If it is deleted there, it is created once more.
		klog.ErrorS(err, "record the members that have a namespace", "cluster", cluster, "namespace", name)
	}
	return true, nil
}

// forMember returns the namespace as a syncer would create it. From now on the member's
// syncer treats it as its own: labels follow those of the workspace's namespace, and
// once that is deleted, the member's is deleted when it is empty.
func (n *MemberNamespaces) forMember(from *corev1.Namespace, cluster string) *corev1.Namespace {
	labels, annotations := n.metadata(from)
	out := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: from.Name, Labels: labels, Annotations: annotations}}
	metav1.SetMetaDataLabel(&out.ObjectMeta, v1alpha1.ManagedLabel, "true")
	metav1.SetMetaDataAnnotation(&out.ObjectMeta, v1alpha1.ClusterAnnotation, cluster)
	return out
}

// providedIn returns the members that got a namespace.
func providedIn(ns *corev1.Namespace) []string {
	return strings.FieldsFunc(ns.Annotations[v1alpha1.ProvidedInAnnotation], func(r rune) bool { return r == ',' })
}
