package view

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
)

// The names of what is only in views, in the fleet's group and version.
const (
	boundObjectKind = "BoundObject"
	boundObjects    = "boundobjects"
	boundNamespace  = "BoundNamespace"
	boundNamespaces = "boundnamespaces"
	clusterKind     = "Cluster"
	clusters        = "clusters"
	lessonKind      = "ResourceInterpretation"
	lessons         = "resourceinterpretations"
	haltedResource  = "halted"
	typesResource   = "types"
	groupResource   = "apigroup"
	credentialRest  = "/credential"
)

// apiVersion is the fleet's, of everything that is only in views.
const apiVersion = v1alpha1.Group + "/" + v1alpha1.Version

// BoundObject is one binding as its cluster sees it: the cluster's part of the
// decision, its entry in the status, and the object as the cluster should have it. It
// has the binding's name and UID. One document holds all that belongs together, so
// that a syncer never sees an object of one moment and a share of another.
type BoundObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Binding without what concerns other clusters.
	Binding BoundBinding `json:"spec"`
	Status  BoundStatus  `json:"status"`
	// Source of the object; absent if there is none (any more).
	Source *fleet.Source `json:"source,omitempty"`
	// Object as the cluster should have it; absent if it should not.
	Object *runtime.RawExtension `json:"object,omitempty"`
	// Problem says why there is no Object although there should be one.
	Problem string `json:"problem,omitempty"`
	// Leaves: asked for live, the object is to leave the cluster. Only what is got by
	// its name says so.
	Leaves bool `json:"leaves,omitempty"`
	// Decided: it leaves though nobody asked for that.
	Decided bool `json:"decided,omitempty"`
	// TypeVanished: its type is gone, and nobody is known to have deleted it.
	TypeVanished bool `json:"typeVanished,omitempty"`
}

// BoundBinding is the cluster's part of a decision.
type BoundBinding struct {
	Resource v1alpha1.ObjectReference `json:"resource"`
	// Share is absent if the decision does not name the cluster (any more).
	Share *v1alpha1.ClusterShare `json:"share,omitempty"`
	// Autoscaled: something in the cluster sets the replica count.
	Autoscaled bool `json:"autoscaled,omitempty"`
	// Requested is the binding's entry for the cluster, if it has one.
	Requested *v1alpha1.RequestedRemoval `json:"requested,omitempty"`
	// Scale says where objects of a custom kind keep their replicas.
	Scale *interpret.Scale `json:"scale,omitempty"`
	// Suspend and Drift are as in the binding; what waits for a plan is suspended, too.
	Suspend bool                 `json:"suspend,omitempty"`
	Drift   v1alpha1.DriftPolicy `json:"drift,omitempty"`
	// Manual: it changes by applied plans only.
	Manual bool `json:"manual,omitempty"`
}

// BoundStatus is what the cluster reports.
type BoundStatus struct {
	// State is the cluster's entry in the status of the binding.
	State *v1alpha1.ClusterState `json:"state,omitempty"`
	// Removed, in a report, takes the entry out: nothing of the object is left in the
	// cluster. A report says either this or State, so that one that is cut short
	// says nothing.
	Removed bool `json:"removed,omitempty"`
}

// BoundNamespace is a namespace that has bound objects in it, with the labels and
// annotations that it has in the control plane. Got by its name, it says whether the
// control plane has the namespace no more. That is an answer and no error: an error may
// mean anything.
type BoundNamespace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Gone is said, live, only of what is got by its name.
	Gone bool `json:"gone,omitempty"`
}

// Note is an event that a syncer has for the owner of a bound object.
type Note struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// CredentialRequest asks for a certificate of a cluster's syncer.
type CredentialRequest struct {
	// Request is a PKCS #10 certificate request in PEM. Only its key counts.
	Request string `json:"request"`
	// Renew keeps the credential, so that certificates handed out before go on to be
	// good. Syncers can do nothing else.
	Renew bool `json:"renew,omitempty"`
}

// Credential is the answer.
type Credential struct {
	// Certificate in PEM.
	Certificate string `json:"certificate"`
}

// event is one line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// reduced gives a binding as its cluster may see it. It is made of what is named
// here; whatever else a binding has, or gets one day, is no syncer's business.
func reduced(b *v1alpha1.ResourceBinding, cluster string) *BoundObject {
	out := &BoundObject{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundObjectKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, UID: b.UID,
			CreationTimestamp: b.CreationTimestamp, DeletionTimestamp: b.DeletionTimestamp, Generation: b.Generation},
		Binding: BoundBinding{Resource: b.Spec.Resource, Autoscaled: b.Spec.ScaledBy != nil, Suspend: b.Spec.Suspend, Drift: b.Spec.Drift, Manual: b.Spec.Manual != nil},
	}
	if leave, ok := b.Annotations[v1alpha1.LeaveAnnotation]; ok {
		out.Annotations = map[string]string{v1alpha1.LeaveAnnotation: leave}
	}
	if share, chosen := b.Share(cluster); chosen {
		// What is said of it may speak of other clusters, and overrides have been applied.
		share.Message, share.Overrides = "", nil
		out.Binding.Share = &share
	}
	if requested, ok := b.RequestedRemoval(cluster); ok {
		out.Binding.Requested = &requested
	}
	if state, reported := b.State(cluster); reported {
		out.Status.State = &state
	}
	return out
}

// binding is the other direction: what a syncer works with.
func (o *BoundObject) binding() *v1alpha1.ResourceBinding {
	b := &v1alpha1.ResourceBinding{ObjectMeta: o.ObjectMeta}
	b.Spec.Resource, b.Spec.Suspend, b.Spec.Drift = o.Binding.Resource, o.Binding.Suspend, o.Binding.Drift
	if o.Binding.Manual {
		b.Spec.Manual = &v1alpha1.ManualBinding{}
	}
	if o.Binding.Autoscaled {
		b.Spec.ScaledBy = &v1alpha1.Requirer{}
	}
	if o.Binding.Share != nil {
		b.Spec.Clusters = []v1alpha1.ClusterShare{*o.Binding.Share}
	}
	if o.Binding.Requested != nil {
		b.Spec.RequestedRemovals = []v1alpha1.RequestedRemoval{*o.Binding.Requested}
	}
	if o.Status.State != nil {
		b.Status.Clusters = []v1alpha1.ClusterState{*o.Status.State}
	}
	return b
}

// reducedLesson is what somebody taught about a kind, for those who have objects of it.
func reducedLesson(in *v1alpha1.ResourceInterpretation) *v1alpha1.ResourceInterpretation {
	return &v1alpha1.ResourceInterpretation{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: lessonKind},
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: in.UID, Generation: in.Generation, CreationTimestamp: in.CreationTimestamp},
		Spec:       in.Spec,
	}
}

// reducedCluster is a Cluster as its own syncer sees it.
func reducedCluster(c *v1alpha1.Cluster) *v1alpha1.Cluster {
	out := &v1alpha1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: clusterKind},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: c.UID, Generation: c.Generation,
			CreationTimestamp: c.CreationTimestamp, DeletionTimestamp: c.DeletionTimestamp},
		Spec: v1alpha1.ClusterSpec{Mode: c.Spec.Mode, Syncer: c.Spec.Syncer, Taints: c.Spec.Taints},
	}
	if halted := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted); halted != nil {
		out.Status.Conditions = []metav1.Condition{*halted}
	}
	// By these its syncer knows that it serves the cluster that joined.
	out.Status.ID = c.Status.ID
	if ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady); ready != nil && ready.Reason == v1alpha1.ReasonWrongCluster {
		out.Status.Conditions = append(out.Status.Conditions, *ready)
	}
	for _, told := range []string{v1alpha1.LeaveAnnotation, v1alpha1.AllowDeletionsAnnotation, v1alpha1.AcceptIDAnnotation} {
		if value, ok := c.Annotations[told]; ok {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, told, value)
		}
	}
	return out
}
