package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Marks on what the fleet made in a member cluster. An object without them is
// somebody else's and is never changed or deleted.
const (
	// ManagedLabel ("true") is on every object that a syncer made. Watches on
	// members select by it.
	ManagedLabel = Group + "/managed"
	// ClusterAnnotation names the Cluster whose syncer made the object, so that
	// one member joined under two names is noticed instead of fought over.
	ClusterAnnotation = Group + "/cluster"
	// SourceUIDAnnotation is the UID of the object in the control plane.
	SourceUIDAnnotation = Group + "/source-uid"
)

// Marks on what makes a member serve a SharedAPI. The label is another than
// ManagedLabel, so that syncers, which answer for everything that carries theirs,
// do not hear of it.
const (
	// ManagedByLabel (ManagedByAtoll) is on every such object.
	ManagedByLabel = Group + "/managed-by"
	ManagedByAtoll = "atoll"
	// SharedAPIAnnotation names the SharedAPI, on what is there for one alone.
	SharedAPIAnnotation = Group + "/shared-api"
	// TypesAnnotation changes with the types of a group, on its APIServices: a
	// member's API server reads discovery anew when one of them changes, and
	// otherwise once a minute.
	TypesAnnotation = Group + "/types"
)

// SharedLabel ("true") on a CustomResourceDefinition of the control plane says that
// members share, or have shared, its group, so that objects of it may name owners
// that live in a member. Nobody takes it off but a person who knows better.
const SharedLabel = Group + "/shared"

// How servers announce, in the control plane, where members reach them: each by a
// Lease in SystemNamespace that carries MemberEndpointLabel and, as
// AddressAnnotation, host:port. Who did not renew it for MemberEndpointExpiry, while
// others did, is gone. The label's value names the Cluster that the server runs in, if any: that
// member calls no other as long as this one is there.
const (
	MemberEndpointLabel  = Group + "/member-endpoint"
	AddressAnnotation    = Group + "/address"
	MemberEndpointRenew  = 3 * time.Second
	MemberEndpointExpiry = 10 * time.Second
)

const (
	// CollectorsGroup is what the members' garbage collectors belong to in the control
	// plane, and the name of the role by which they read what is exposed.
	CollectorsGroup = "atoll:member-collectors"
	// ProvidedForAnnotation, on a namespace that was made on first use, names the
	// member whose user needed it first.
	ProvidedForAnnotation = Group + "/provided-for"
)

// What people write on objects in the control plane.
const (
	// ClusterLabel on an object, or on a namespace for all that is in it, names the
	// one cluster where it is to run. It comes before what policies say about that;
	// an object's own before its namespace's.
	ClusterLabel = Group + "/cluster"
	// AdoptAnnotation ("true") on an object lets syncers take over an object of
	// the same name that already exists in a member.
	AdoptAnnotation = Group + "/adopt"
	// AllowDeletionsAnnotation on a Cluster is a time (RFC 3339) until which its syncer
	// removes whatever is to be removed, however much that is.
	AllowDeletionsAnnotation = Group + "/allow-deletions"
	// AcceptIDAnnotation on a Cluster is the ID of a real cluster that may take the
	// place of the one that joined: it was made anew, and a person says so.
	AcceptIDAnnotation = Group + "/accept-id"
	// LeaveAnnotation on a Cluster says what its deletion does to what runs
	// there: LeaveDelete (the default) or LeaveOrphan.
	LeaveAnnotation = Group + "/leave"

	// LeaveDelete removes the fleet's objects from the member.
	LeaveDelete = "delete"
	// LeaveOrphan leaves them running and takes the marks off, if the member
	// can be reached; it does not need to be.
	LeaveOrphan = "orphan"
)

const (
	// BindingFinalizer keeps a ResourceBinding until no member holds the object.
	BindingFinalizer = Group + "/empty-members"
	// ClusterFinalizer keeps a Cluster until nothing is bound to it.
	ClusterFinalizer = Group + "/leave"
	// ExposeFinalizer keeps a SharedAPI, and a Cluster that serves one, until
	// nothing of it is left in the member.
	ExposeFinalizer = Group + "/expose"

	// SystemNamespace holds the fleet's own Secrets.
	SystemNamespace = "atoll-system"
	// KubeconfigSecretType is the type of Secrets that hold a member's kubeconfig.
	KubeconfigSecretType = Group + "/kubeconfig"
	// KubeconfigSecretKey is the key of the kubeconfig in such a Secret.
	KubeconfigSecretKey = "kubeconfig"
)

// ReservedClusterNames are names that no Cluster may have. Users of a member get
// its name before their own where they use shared APIs, and some names would make
// them Atoll's or Kubernetes' own: group "masters" of a cluster called system would
// be "system:masters".
func ReservedClusterNames() []string { return []string{"system", "atoll", "kubernetes", "kubeadm"} }

// BindingName gives the name of the ResourceBinding of an object: readable
// (deployment.apps-web) where that is unambiguous and short enough, else ending
// in a hash of the parts.
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
