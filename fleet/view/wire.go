package view

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/interpret"
	"github.com/atoll-dev/atoll/fleet/multicluster"
)

// Names of the resources and kinds that exist only in views, in the fleet's group and version.
const (
	boundObjectKind    = "BoundObject"
	boundObjects       = "boundobjects"
	boundNamespace     = "BoundNamespace"
	boundNamespaces    = "boundnamespaces"
	clusterKind        = "Cluster"
	clusters           = "clusters"
	interpretationKind = "ResourceInterpretation"
	interpretations    = "resourceinterpretations"
	haltedResource     = "halted"
	typesResource      = "types"
	groupResource      = "apigroup"
	endpointsResource  = "endpoints"
	credentialRest     = "/credential"
)

// apiVersion is the API version of the resources of views.
const apiVersion = v1alpha1.Group + "/" + v1alpha1.Version

// BoundObject is one binding as its cluster sees it: the cluster's part of the decision, its
// entry in the status, and the object as the cluster should have it. It has the binding's name
// and UID. One document contains all related data, so that a syncer never combines an object
// with a share of another point in time.
type BoundObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Binding excludes everything that concerns other clusters.
	Binding BoundBinding `json:"spec"`
	Status  BoundStatus  `json:"status"`
	// Source is the state of the source object; absent if the object does not exist (any more).
	Source *fleet.SourceObject `json:"source,omitempty"`
	// Object is the object as the cluster should have it; absent if it should have none.
	Object *runtime.RawExtension `json:"object,omitempty"`
	// Problem is the reason why Object is absent although there should be one.
	Problem string `json:"problem,omitempty"`
	// Leaves reports that a live read confirmed the removal of the object from the cluster. It
	// is set only when the BoundObject is read by name.
	Leaves bool `json:"leaves,omitempty"`
	// Decided reports that no one requested the removal.
	Decided bool `json:"decided,omitempty"`
	// Waits is set instead of Leaves while the object has to stay, although it is to leave: until
	// other clusters run it, for example.
	Waits string `json:"waits,omitempty"`
	// TypeVanished reports that the object's type is gone although no one is known to have
	// deleted it.
	TypeVanished bool `json:"typeVanished,omitempty"`
}

// BoundBinding is the cluster's part of a decision.
type BoundBinding struct {
	Resource v1alpha1.ObjectReference `json:"resource"`
	// Share is absent if the decision does not name the cluster (any more).
	Share *v1alpha1.ClusterShare `json:"share,omitempty"`
	// Autoscaled reports that an autoscaler in the cluster sets the replica count.
	Autoscaled bool `json:"autoscaled,omitempty"`
	// Requested is the binding's entry of a requested removal from the cluster, if there is
	// one.
	Requested *v1alpha1.RequestedRemoval `json:"requested,omitempty"`
	// Scale contains the replica paths of a custom kind.
	Scale *interpret.Scale `json:"scale,omitempty"`
	// Suspend and Drift are as in the binding; an object that waits for a plan is suspended,
	// too.
	Suspend bool                 `json:"suspend,omitempty"`
	Drift   v1alpha1.DriftPolicy `json:"drift,omitempty"`
	// Manual reports that the object changes only by applied plans.
	Manual bool `json:"manual,omitempty"`
	// Fencing is set if the cluster stops the replicas when it has no contact.
	Fencing *v1alpha1.BindingFencing `json:"fencing,omitempty"`
	// Volumes are the transfers of volumes in which the cluster has a part.
	Volumes []v1alpha1.VolumeTransfer `json:"volumes,omitempty"`
}

// BoundStatus is the report of the cluster.
type BoundStatus struct {
	// State is the cluster's entry in the status of the binding.
	State *v1alpha1.ClusterState `json:"state,omitempty"`
	// Removed, in a report, removes the entry: the cluster has no object of the binding any
	// more. A report has either State or Removed, so that a truncated one has no effect.
	Removed bool `json:"removed,omitempty"`
}

// BoundNamespace is a namespace that contains bound objects, with its labels and annotations in
// the control plane. When read by name, it reports whether the control plane no longer has the
// namespace. That is a response and not an error, because an error may have any cause.
type BoundNamespace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Gone is set, after a live read, only when the BoundNamespace is read by name.
	Gone bool `json:"gone,omitempty"`
}

// EndpointsReport is which endpoints an exported Service has in the cluster.
type EndpointsReport struct {
	// UID of the binding.
	UID types.UID `json:"uid"`
	multicluster.Endpoints
}

// EventReport is an event that a syncer reports on a bound object.
type EventReport struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// CredentialRequest requests a certificate for a cluster's syncer.
type CredentialRequest struct {
	// Request is a PKCS #10 certificate request in PEM. Only its key counts.
	Request string `json:"request"`
	// Renew keeps the current credential, so that certificates issued earlier stay valid.
	// Syncers can only renew.
	Renew bool `json:"renew,omitempty"`
}

// Credential is the response to a CredentialRequest.
type Credential struct {
	// Certificate in PEM.
	Certificate string `json:"certificate"`
}

// event is one line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// reduced returns a binding as its cluster may see it. It copies named fields only: other
// fields of a binding, including future ones, are not visible to syncers.
func reduced(b *v1alpha1.ResourceBinding, cluster string) *BoundObject {
	out := &BoundObject{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: boundObjectKind},
		ObjectMeta: metav1.ObjectMeta{Namespace: b.Namespace, Name: b.Name, UID: b.UID,
			CreationTimestamp: b.CreationTimestamp, DeletionTimestamp: b.DeletionTimestamp, Generation: b.Generation},
		Binding: BoundBinding{Resource: b.Spec.Resource, Autoscaled: b.Spec.ScaledBy != nil, Suspend: b.Spec.Suspend, Drift: b.Spec.Drift, Manual: b.Spec.Manual != nil, Fencing: b.Spec.Fencing},
	}
	for _, mark := range []string{v1alpha1.LeaveAnnotation, v1alpha1.ExportedAnnotation} {
		if value, ok := b.Annotations[mark]; ok {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, mark, value)
		}
	}
	if share, chosen := b.Share(cluster); chosen {
		// The message may mention other clusters, and the overrides have been applied already.
		share.Message, share.Overrides = "", nil
		out.Binding.Share = &share
	}
	for _, t := range b.Spec.Volumes {
		if t.From == cluster || t.To == cluster {
			out.Binding.Volumes = append(out.Binding.Volumes, t)
		}
	}
	if requested, ok := b.RequestedRemoval(cluster); ok {
		out.Binding.Requested = &requested
	}
	if state, reported := b.State(cluster); reported {
		out.Status.State = &state
	}
	return out
}

// binding is the inverse of reduced: the binding that a syncer works with.
func (o *BoundObject) binding() *v1alpha1.ResourceBinding {
	b := &v1alpha1.ResourceBinding{ObjectMeta: o.ObjectMeta}
	b.Spec.Resource, b.Spec.Suspend, b.Spec.Drift, b.Spec.Volumes, b.Spec.Fencing = o.Binding.Resource, o.Binding.Suspend, o.Binding.Drift, o.Binding.Volumes, o.Binding.Fencing
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

// reducedInterpretation returns a ResourceInterpretation as the syncers of clusters with
// objects of the kind see it.
func reducedInterpretation(in *v1alpha1.ResourceInterpretation) *v1alpha1.ResourceInterpretation {
	return &v1alpha1.ResourceInterpretation{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: interpretationKind},
		ObjectMeta: metav1.ObjectMeta{Name: in.Name, UID: in.UID, Generation: in.Generation, CreationTimestamp: in.CreationTimestamp},
		Spec:       withoutAddress(in.Spec),
	}
}

// withoutAddress omits how servers reach the webhook: syncers ask servers, and its path may be a secret.
func withoutAddress(spec v1alpha1.ResourceInterpretationSpec) v1alpha1.ResourceInterpretationSpec {
	if w := spec.Webhook; w != nil {
		spec.Webhook = &v1alpha1.InterpretationWebhook{URL: "https://" + interpret.WebhookHost(w) + "/", TimeoutSeconds: w.TimeoutSeconds, Operations: w.Operations}
	}
	return spec
}

// reducedCluster returns a Cluster as its own syncer sees it. With the control plane that serves it, the
// syncer claims the cluster.
func reducedCluster(c *v1alpha1.Cluster, by fleet.ControlPlane) *v1alpha1.Cluster {
	out := &v1alpha1.Cluster{
		TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: clusterKind},
		ObjectMeta: metav1.ObjectMeta{Name: c.Name, UID: c.UID, Generation: c.Generation,
			CreationTimestamp: c.CreationTimestamp, DeletionTimestamp: c.DeletionTimestamp},
		Spec: v1alpha1.ClusterSpec{Mode: c.Spec.Mode, Syncer: c.Spec.Syncer, Taints: c.TaintsWithTime()},
	}
	if halted := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterDeletionsHalted); halted != nil {
		out.Status.Conditions = []metav1.Condition{*halted}
	}
	// With these fields the syncer verifies that it serves the cluster that joined.
	out.Status.ID = c.Status.ID
	out.Status.Claim = by.Claim()
	if ready := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ClusterReady); ready != nil && ready.Reason == v1alpha1.ReasonWrongCluster {
		out.Status.Conditions = append(out.Status.Conditions, *ready)
	}
	for _, annotation := range []string{v1alpha1.LeaveAnnotation, v1alpha1.AllowDeletionsAnnotation, v1alpha1.AcceptIDAnnotation, v1alpha1.TakeOverAnnotation, v1alpha1.AdoptAnnotation} {
		if value, ok := c.Annotations[annotation]; ok {
			metav1.SetMetaDataAnnotation(&out.ObjectMeta, annotation, value)
		}
	}
	return out
}
