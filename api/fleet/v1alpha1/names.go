package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Marks on the fleet's objects in a member cluster. An object without them belongs to another
// owner, and is never changed or deleted.
const (
	// ManagedLabel ("true") is on every object that a syncer created. Watches on members select by
	// it.
	ManagedLabel = Group + "/managed"
	// ClusterAnnotation names the Cluster whose syncer created the object. So a member that joined
	// under two names is detected, and two syncers do not overwrite each other.
	ClusterAnnotation = Group + "/cluster"
	// SourceUIDAnnotation is the UID of the object in the control plane.
	SourceUIDAnnotation = Group + "/source-uid"
)

// LeftClusters is a ConfigMap in SystemNamespace: the IDs of the clusters that left, by name. Another cluster that joins
// under such a name would have the rights of its users.
const LeftClusters = "left-clusters"

// Marks on the objects that make a member serve a SharedAPI. The label differs from ManagedLabel,
// because syncers handle all objects with their label.
const (
	// ManagedByLabel (ManagedByAtoll) is on every such object.
	ManagedByLabel = Group + "/managed-by"
	ManagedByAtoll = "atoll"
	// SharedAPIAnnotation names the SharedAPI, on objects that exist for only one.
	SharedAPIAnnotation = Group + "/shared-api"
	// TypesAnnotation, on the APIServices of a group, changes with the types of the group. A
	// member's API server reads discovery again when an APIService changes, and otherwise once a
	// minute.
	TypesAnnotation = Group + "/types"
)

// SharedLabel ("true") on a CustomResourceDefinition of the control plane: members share, or have
// shared, its group. Its objects may therefore have owners that exist in a member. Only a user
// removes it.
const SharedLabel = Group + "/shared"

// RevisionLabel ("true") is on the ReplicaSets and ControllerRevisions with which the control plane
// records the pod templates of workloads. They are never placed, even if their owner was deleted with
// --cascade=orphan: they would start a second set of pods.
const RevisionLabel = Group + "/revision"

// Names and intervals for the servers' announcements of their address for members. Each server has
// a Lease in SystemNamespace with MemberEndpointLabel, and host:port as AddressAnnotation. A server
// is gone if it did not renew its Lease for MemberEndpointExpiry, while others did. The label's
// value is the Cluster that the server runs in, if any. That member calls only this server while it
// exists.
const (
	MemberEndpointLabel  = Group + "/member-endpoint"
	AddressAnnotation    = Group + "/address"
	MemberEndpointRenew  = 3 * time.Second
	MemberEndpointExpiry = 10 * time.Second
)

const (
	// CollectorsGroup is the group of the members' garbage collectors in the control plane, and the
	// name of the role that lets them read exposed types.
	CollectorsGroup = "atoll:member-collectors"
	// ProvidedForAnnotation, on a namespace that was created on first use, names the member whose
	// user needed it first.
	ProvidedForAnnotation = Group + "/provided-for"
	// ProvidedInAnnotation, on a namespace of the control plane, names the members that got the
	// namespace when one of their users first wrote a shared object of it, separated by commas.
	// Each gets it once.
	ProvidedInAnnotation = Group + "/provided-in"
)

// Labels and annotations that users set on objects in the control plane.
const (
	// ClusterLabel on an object, or on a namespace for all objects in it, names the one cluster
	// where the object runs. It takes precedence over the cluster selection of policies. The
	// object's label takes precedence over the namespace's.
	ClusterLabel = Group + "/cluster"
	// HomeLabel on a CustomResourceDefinition or on one of its objects is Above or Members: where the
	// controller works that keeps the objects' status.
	HomeLabel = Group + "/home"
	// GroupLabel on workloads of a namespace joins those with the same value: all that run in one
	// cluster run in the same.
	GroupLabel = Group + "/group"
	// AdoptAnnotation on an object lets syncers take over an object of the same name that
	// already exists in a member: in every one with "true", in some with their Clusters' names, separated by commas.
	// On a Namespace, the same values let them put objects into an existing namespace, and "false" forbids it
	// for those that need no adoption.
	// On a Cluster, its syncer takes over what this fleet left there (LeftAnnotation), and uses the existing
	// namespaces, with "true".
	AdoptAnnotation = Group + "/adopt"
	// LeftAnnotation on an object in a member is the UID of the object in the control
	// plane whose copy it was until the fleet left it there.
	LeftAnnotation = Group + "/left"
	// TransitionAnnotation on an object is an ObjectTransition as JSON: how it gets to other clusters.
	TransitionAnnotation = Group + "/transition"
	// RebalanceAnnotation on an object requests a division of its replicas by its policy and by the room
	// that there is now, once for each value.
	RebalanceAnnotation = Group + "/rebalance"
	// ApprovedAnnotation of a Placement or ClusterPlacement is the generation whose edit a user approved:
	// that generation takes effect for all objects at once.
	ApprovedAnnotation = Group + "/approved-generation"
	// DeletionProtectedLabel ("true") protects an object from deletion, until the label is removed.
	DeletionProtectedLabel = Group + "/deletion-protected"
	// ConfigurationLabel on a ConfigMap, a Secret or another object of a namespace's configuration, or
	// on the namespace for all of them, is WithNamespace or WhereNeeded. It takes precedence over
	// policies.
	ConfigurationLabel = Group + "/configuration"
	// AllowDeletionsAnnotation on a Cluster is the time (RFC 3339) until which its syncer may
	// delete any number of objects.
	AllowDeletionsAnnotation = Group + "/allow-deletions"
	// ReclaimPolicyAnnotation on a PersistentVolume of a member is the reclaim policy that it had before its volume began
	// to go to another cluster.
	ReclaimPolicyAnnotation = Group + "/reclaim-policy"
	// AcceptIDAnnotation on a Cluster is the ID of a real cluster that a user accepts as the
	// recreated member.
	AcceptIDAnnotation = Group + "/accept-id"
	// TakeOverAnnotation on a Cluster is the holder of a claim that a user lets this control plane
	// replace.
	TakeOverAnnotation = Group + "/take-over"
	// LeaveAnnotation on a Cluster is what its deletion does to the objects in the member:
	// LeaveDelete (the default) or LeaveOrphan.
	LeaveAnnotation = Group + "/leave"

	// LeaveDelete removes the fleet's objects from the member.
	LeaveDelete = "delete"
	// LeaveOrphan leaves them running, and removes the marks if the member can be reached. It works
	// without a connection, too.
	LeaveOrphan = "orphan"
)

const (
	// BindingFinalizer keeps a ResourceBinding until no member holds the object.
	BindingFinalizer = Group + "/empty-members"
	// ClusterFinalizer keeps a Cluster until it has no bindings.
	ClusterFinalizer = Group + "/leave"
	// ExposeFinalizer keeps a SharedAPI, and a Cluster that serves one, until no part of it is left
	// in the member.
	ExposeFinalizer = Group + "/expose"

	// WithdrawAnnotation on a Cluster lists shared API groups, separated by commas, that may be
	// withdrawn from it although objects there would lose their owners.
	WithdrawAnnotation = Group + "/withdraw"

	// ClaimLease is the Lease in a member's namespace kube-system by which a control plane claims the
	// member. ClaimServerAnnotation and ClaimSessionAnnotation on it are an address of a server, and
	// the process that renews the Lease.
	ClaimLease             = "atoll-control-plane"
	ClaimServerAnnotation  = Group + "/server"
	ClaimSessionAnnotation = Group + "/session"

	// SystemNamespace holds the fleet's own Secrets.
	SystemNamespace = "atoll-system"
	// KubeconfigSecretType is the type of Secrets that hold a member's kubeconfig.
	KubeconfigSecretType = Group + "/kubeconfig"
	// KubeconfigSecretKey is the key of the kubeconfig in such a Secret.
	KubeconfigSecretKey = "kubeconfig"
)

// ReservedClusterNames returns the names that no Cluster may have. With shared APIs, the names of a
// member's users get its name as a prefix. Some names would make them users of Atoll or Kubernetes:
// group "masters" of a cluster called system would become "system:masters".
func ReservedClusterNames() []string { return []string{"system", "atoll", "kubernetes", "kubeadm"} }

// BindingName returns the name of an object's ResourceBinding. It is readable (deployment.apps-web)
// if that is unambiguous and short enough, and otherwise contains a hash of the parts.
func BindingName(kind schema.GroupKind, name string) string {
	head := strings.ToLower(kind.Kind)
	if kind.Group != "" {
		head += "." + kind.Group
	}
	full := head + "-" + name
	// A group may contain dashes: "a.b-c" + "d" and "a.b" + "c-d" must differ.
	if !strings.Contains(head, "-") && len(validation.IsDNS1123Subdomain(full)) == 0 {
		return full
	}
	sum := sha256.Sum256([]byte(kind.Group + "\x00" + kind.Kind + "\x00" + name))
	return "h-" + hex.EncodeToString(sum[:16])
}
