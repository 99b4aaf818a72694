package view

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycoordinationv1 "k8s.io/client-go/applyconfigurations/coordination/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/fleet/capacity"
	"github.com/atoll-dev/atoll/fleet/multicluster"
	"github.com/atoll-dev/atoll/fleet/volumes"
)

// maxMessageBytes limits each message of a syncer.
const maxMessageBytes = 1024

// report handles a syncer's report on a bound object: it writes the cluster's own entry and
// nothing else.
func (r *request) report(w http.ResponseWriter, what objectKey) {
	var in BoundObject
	if err := r.read(w, &in); err != nil {
		writeError(w, err)
		return
	}
	key := types.NamespacedName{Namespace: what.Namespace, Name: what.Name}
	b, ok := r.view.binding(key)
	state := in.Status.State
	var err error
	switch {
	case !ok:
		err = notInView(what, r.cluster)
	case in.UID != b.UID:
		err = newStatusError(metav1.StatusReasonConflict, "%s has UID %s, but metadata.uid is %q: it is a different object of the same name", what, b.UID, in.UID)
	case (state == nil) != in.Status.Removed:
		err = newStatusError(metav1.StatusReasonBadRequest, "a report must have either status.state or status.removed: true")
	case state != nil && state.Name != r.cluster:
		err = newStatusError(metav1.StatusReasonForbidden, "the syncer of cluster %s must report as %s, not as %q", r.cluster, r.cluster, state.Name)
	}
	if err == nil && state != nil {
		err = checkVolumes(state.Volumes)
	}
	if err == nil && state != nil {
		if why := multicluster.ClusterIPsProblem(state.ClusterIPs); why != "" {
			err = newStatusError(metav1.StatusReasonBadRequest, "status.state.clusterIPs: %s", why)
		}
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if state != nil {
		// Use this server's clock, as for all other entries, not that of the syncer's machine.
		now := r.view.view.session.Clock.Now()
		state.LastUpdateTime = metav1.NewTime(now)
		if before, reported := b.State(state.Name); reported {
			state.TrackHealth(&before, now)
		} else {
			state.TrackHealth(nil, now)
		}
	}
	if err := r.view.view.Report(r.Context(), b, state); err != nil {
		writeError(w, err)
		return
	}
	writeSuccess(w)
}

// checkVolumes bounds what a cluster says about volumes: another cluster acts on it.
func checkVolumes(reports []v1alpha1.VolumeReport) error {
	if len(reports) > v1alpha1.MaxVolumeTransfers {
		return newStatusError(metav1.StatusReasonBadRequest, "status.state.volumes has more than %d entries", v1alpha1.MaxVolumeTransfers)
	}
	for i := range reports {
		r := &reports[i]
		if len(r.Message) > maxMessageBytes {
			return newStatusError(metav1.StatusReasonBadRequest, "status.state.volumes: a message is longer than %d bytes", maxMessageBytes)
		}
		if r.Volume == nil {
			continue
		}
		if why := volumes.Problem(r.Volume); why != "" {
			return newStatusError(metav1.StatusReasonBadRequest, "status.state.volumes: the volume of claim %.253s: %s", r.Claim, why)
		}
	}
	return nil
}

func writeSuccess(w http.ResponseWriter) {
	writeJSON(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
}

// event handles a syncer's event on a bound object.
func (r *request) event(w http.ResponseWriter, what objectKey) {
	var note EventReport
	err := r.read(w, &note)
	b, ok := r.view.binding(types.NamespacedName{Namespace: what.Namespace, Name: what.Name})
	switch {
	case err != nil:
	case !ok:
		err = notInView(what, r.cluster)
	default:
		err = note.check()
	}
	if err != nil {
		writeError(w, err)
		return
	}
	ref := b.Spec.Resource
	r.view.view.session.Events.AnnotatedEventf(&corev1.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: b.Namespace, Name: ref.Name, UID: ref.UID},
		map[string]string{v1alpha1.ClusterAnnotation: r.cluster}, note.Type, note.Reason, "%s", note.Message)
	writeSuccess(w)
}

func (n EventReport) check() error {
	switch {
	case n.Type != corev1.EventTypeNormal && n.Type != corev1.EventTypeWarning:
		return newStatusError(metav1.StatusReasonBadRequest, "type must be %s or %s", corev1.EventTypeNormal, corev1.EventTypeWarning)
	case !isReason(n.Reason):
		return newStatusError(metav1.StatusReasonBadRequest, "reason must be one word in CamelCase, of at most 64 letters")
	case len(n.Message) > maxMessageBytes:
		return newStatusError(metav1.StatusReasonBadRequest, "message is longer than %d bytes", maxMessageBytes)
	}
	return nil
}

func isReason(s string) bool {
	ok, err := regexp.MatchString(`^[A-Z][A-Za-z0-9]{0,63}$`, s)
	return ok && err == nil
}

// heartbeat handles a syncer's status of its cluster. It is stored in a Lease, because only one
// controller needs it, and every controller is notified of a changed Cluster.
func (r *request) heartbeat(w http.ResponseWriter, name string) {
	var seen fleet.Observation
	err := r.read(w, &seen)
	switch {
	case name != r.cluster:
		err = newStatusError(metav1.StatusReasonForbidden, "the syncer of cluster %s must report on cluster %s, not on %q", r.cluster, r.cluster, name)
	case err == nil:
		err = checkObservation(seen)
	}
	if err == nil {
		err = r.storeHeartbeat(r.Context(), seen)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeSuccess(w)
}

// halted handles the report that the syncer waits for an approval before it removes more, or no
// longer waits.
func (r *request) halted(w http.ResponseWriter, name string) {
	var condition metav1.Condition
	err := r.read(w, &condition)
	switch {
	case name != r.cluster:
		err = newStatusError(metav1.StatusReasonForbidden, "the syncer of cluster %s must report on cluster %s, not on %q", r.cluster, r.cluster, name)
	case err != nil:
	case condition.Type != v1alpha1.ClusterDeletionsHalted:
		err = newStatusError(metav1.StatusReasonForbidden, "a syncer may set only the condition %s of its Cluster", v1alpha1.ClusterDeletionsHalted)
	case !isReason(condition.Reason) || len(condition.Message) > maxMessageBytes:
		err = newStatusError(metav1.StatusReasonBadRequest, "reason must be one word in CamelCase, and message at most %d bytes", maxMessageBytes)
	default:
		err = r.view.view.SetDeletionsHalted(r.Context(), condition)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeSuccess(w)
}

// handleTypes handles the list of API groups that the cluster serves.
func (h *Host) handleTypes(w http.ResponseWriter, r *request, name string) {
	var report fleet.TypesReport
	var wanted fleet.TypesWanted
	c, err := r.readReport(w, name, &report)
	if err == nil {
		wanted, err = h.cfg.Types.StoreTypes(r.Context(), r.caches.session, c, report)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, wanted)
}

// handleGroup handles the content of one API group.
func (h *Host) handleGroup(w http.ResponseWriter, r *request, name string) {
	var report fleet.GroupReport
	c, err := r.readReport(w, name, &report)
	if err == nil {
		err = h.cfg.Types.StoreGroup(r.Context(), r.caches.session, c, report)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeSuccess(w)
}

// readReport decodes a syncer's report on its cluster, and returns the Cluster.
func (r *request) readReport(w http.ResponseWriter, name string, into any) (*v1alpha1.Cluster, error) {
	if name != r.cluster {
		return nil, newStatusError(metav1.StatusReasonForbidden, "the syncer of cluster %s must report on cluster %s, not on %q", r.cluster, r.cluster, name)
	}
	c, ok := r.view.view.Cluster()
	if !ok {
		return nil, notInView(objectKey{v1alpha1.ClusterResource, types.NamespacedName{Name: r.cluster}}, r.cluster)
	}
	return c, r.read(w, into)
}

func checkObservation(o fleet.Observation) error {
	const most = 128 // bytes of the version and the ID, and resource names
	switch {
	case !isReason(o.Reason):
		return newStatusError(metav1.StatusReasonBadRequest, "reason must be one word in CamelCase, of at most 64 letters")
	case len(o.Message) > maxMessageBytes || len(o.NamespacesMessage) > maxMessageBytes:
		return newStatusError(metav1.StatusReasonBadRequest, "message or namespacesMessage is longer than %d bytes", maxMessageBytes)
	case o.ID != "" && !v1alpha1.ValidClusterID(o.ID):
		return newStatusError(metav1.StatusReasonBadRequest, "id must be the UID of the cluster's namespace kube-system; %q is not a UID", o.ID)
	case len(o.NamespacesRemoved) > most:
		return newStatusError(metav1.StatusReasonBadRequest, "namespacesRemoved is longer than %d bytes", most)
	case len(o.Version) > most || len(o.ID) > most || len(o.Capacity) > most || len(o.Allocatable) > most:
		return newStatusError(metav1.StatusReasonBadRequest, "version, id, capacity and allocatable must have at most %d bytes or entries", most)
	case len(o.PendingPods) > v1alpha1.MaxPendingPods:
		return newStatusError(metav1.StatusReasonBadRequest, "more than %d workloads with pending pods", v1alpha1.MaxPendingPods)
	case !capacity.QuotasAcceptable(o.NamespaceQuotas):
		return newStatusError(metav1.StatusReasonBadRequest, "namespaceQuotas has more than %d quotas, too many resources or scopes, or negative amounts", v1alpha1.MaxNamespaceQuotas)
	case o.NodeShapes != nil && !capacity.Acceptable(o.NodeShapes):
		return newStatusError(metav1.StatusReasonBadRequest, "nodeShapes has too many shapes, labels, taints or resources, or negative amounts")
	}
	return nil
}

func (r *request) storeHeartbeat(ctx context.Context, seen fleet.Observation) error {
	c, ok := r.view.view.Cluster()
	if !ok {
		return notInView(objectKey{v1alpha1.ClusterResource, types.NamespacedName{Name: r.cluster}}, r.cluster)
	}
	data, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	session := r.view.view.session
	lease := applycoordinationv1.Lease(v1alpha1.HeartbeatLease(r.cluster), v1alpha1.SystemNamespace).
		WithLabels(map[string]string{v1alpha1.HeartbeatLabel: r.cluster}).
		WithAnnotations(map[string]string{v1alpha1.ObservationAnnotation: string(data)}).
		// The Lease is deleted with the Cluster.
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion(apiVersion).WithKind(clusterKind).WithName(c.Name).WithUID(c.UID)).
		WithSpec(applycoordinationv1.LeaseSpec().WithHolderIdentity(r.caller.Name).
			WithLeaseDurationSeconds(int32(v1alpha1.HeartbeatExpiry / time.Second)).
			WithRenewTime(metav1.NewMicroTime(session.Clock.Now())))
	leases := session.Kube.CoordinationV1().Leases(v1alpha1.SystemNamespace)
	how := metav1.ApplyOptions{FieldManager: reporterOf(r.cluster), Force: true}
	_, err = leases.Apply(ctx, lease, how)
	if apierrors.IsNotFound(err) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
		if _, err = session.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			_, err = leases.Apply(ctx, lease, how)
		}
	}
	if err != nil {
		return fmt.Errorf("store the heartbeat of cluster %s: %w", r.cluster, err)
	}
	return nil
}
