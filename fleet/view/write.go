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
)

// longestMessage is how much a syncer may say for people at a time.
const longestMessage = 1024

// report takes what a syncer says of a bound object: its own entry, and nothing else.
func (r *request) report(w http.ResponseWriter, what place) {
	var said BoundObject
	if err := r.read(w, &said); err != nil {
		refuse(w, err)
		return
	}
	key := types.NamespacedName{Namespace: what.Namespace, Name: what.Name}
	b, ok := r.view.binding(key)
	state := said.Status.State
	var err error
	switch {
	case !ok:
		err = notInView(what, r.cluster)
	case said.UID != b.UID:
		err = refusal(metav1.StatusReasonConflict, "%s has UID %s, and metadata.uid says %q: it is another one of that name", what, b.UID, said.UID)
	case (state == nil) != said.Status.Removed:
		err = refusal(metav1.StatusReasonBadRequest, "a report has either status.state or status.removed: true")
	case state != nil && state.Name != r.cluster:
		err = refusal(metav1.StatusReasonForbidden, "the syncer of cluster %s reports as %s, not as %q", r.cluster, r.cluster, state.Name)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	if state != nil {
		// By this server's clock, as all others are, and not by one that runs anywhere.
		state.LastUpdateTime = metav1.NewTime(r.view.view.term.Clock.Now())
	}
	if err := r.view.view.Report(r.Context(), b, state); err != nil {
		refuse(w, err)
		return
	}
	accept(w)
}

func accept(w http.ResponseWriter) {
	answer(w, http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
}

// event takes what a syncer has to say to the owner of a bound object.
func (r *request) event(w http.ResponseWriter, what place) {
	var note Note
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
		refuse(w, err)
		return
	}
	ref := b.Spec.Resource
	r.view.view.term.Events.AnnotatedEventf(&corev1.ObjectReference{APIVersion: ref.APIVersion, Kind: ref.Kind, Namespace: b.Namespace, Name: ref.Name, UID: ref.UID},
		map[string]string{v1alpha1.ClusterAnnotation: r.cluster}, note.Type, note.Reason, "%s", note.Message)
	accept(w)
}

func (n Note) check() error {
	switch {
	case n.Type != corev1.EventTypeNormal && n.Type != corev1.EventTypeWarning:
		return refusal(metav1.StatusReasonBadRequest, "type is %s or %s", corev1.EventTypeNormal, corev1.EventTypeWarning)
	case !isReason(n.Reason):
		return refusal(metav1.StatusReasonBadRequest, "reason is one word in CamelCase, of at most 64 letters")
	case len(n.Message) > longestMessage:
		return refusal(metav1.StatusReasonBadRequest, "message is longer than %d bytes", longestMessage)
	}
	return nil
}

func isReason(s string) bool {
	ok, err := regexp.MatchString(`^[A-Z][A-Za-z0-9]{0,63}$`, s)
	return ok && err == nil
}

// heartbeat takes what a syncer sees of its cluster. It is kept in a Lease, because
// only one controller wants to know, and every controller hears of a Cluster that
// changes.
func (r *request) heartbeat(w http.ResponseWriter, name string) {
	var seen fleet.Observation
	err := r.read(w, &seen)
	switch {
	case name != r.cluster:
		err = refusal(metav1.StatusReasonForbidden, "the syncer of cluster %s reports on cluster %s, not on %q", r.cluster, r.cluster, name)
	case err == nil:
		err = checkObservation(seen)
	}
	if err == nil {
		err = r.keepHeartbeat(r.Context(), seen)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	accept(w)
}

// halted takes that the syncer waits for a person before it removes more, or that it
// does not any more.
func (r *request) halted(w http.ResponseWriter, name string) {
	var said metav1.Condition
	err := r.read(w, &said)
	switch {
	case name != r.cluster:
		err = refusal(metav1.StatusReasonForbidden, "the syncer of cluster %s reports on cluster %s, not on %q", r.cluster, r.cluster, name)
	case err != nil:
	case said.Type != v1alpha1.ClusterDeletionsHalted:
		err = refusal(metav1.StatusReasonForbidden, "the only condition of a Cluster that its syncer sets is %s", v1alpha1.ClusterDeletionsHalted)
	case !isReason(said.Reason) || len(said.Message) > longestMessage:
		err = refusal(metav1.StatusReasonBadRequest, "reason is one word in CamelCase, and message has at most %d bytes", longestMessage)
	default:
		err = r.view.view.Halt(r.Context(), said)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	accept(w)
}

// takeTypes takes which API groups the cluster serves.
func (h *Host) takeTypes(w http.ResponseWriter, r *request, name string) {
	var said fleet.TypesReport
	var wanted fleet.TypesWanted
	c, err := r.reporting(w, name, &said)
	if err == nil {
		wanted, err = h.cfg.Types.KeepTypes(r.Context(), r.caches.term, c, said)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, wanted)
}

// takeGroup takes what the cluster serves of one of them.
func (h *Host) takeGroup(w http.ResponseWriter, r *request, name string) {
	var said fleet.GroupReport
	c, err := r.reporting(w, name, &said)
	if err == nil {
		err = h.cfg.Types.KeepGroup(r.Context(), r.caches.term, c, said)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	accept(w)
}

// reporting reads what a syncer says of its cluster, and gives the Cluster.
func (r *request) reporting(w http.ResponseWriter, name string, into any) (*v1alpha1.Cluster, error) {
	if name != r.cluster {
		return nil, refusal(metav1.StatusReasonForbidden, "the syncer of cluster %s reports on cluster %s, not on %q", r.cluster, r.cluster, name)
	}
	c, ok := r.view.view.Cluster()
	if !ok {
		return nil, notInView(place{v1alpha1.ClusterResource, types.NamespacedName{Name: r.cluster}}, r.cluster)
	}
	return c, r.read(w, into)
}

func checkObservation(o fleet.Observation) error {
	const most = 128 // of what the API server says of itself, and of kinds of resources
	switch {
	case !isReason(o.Reason):
		return refusal(metav1.StatusReasonBadRequest, "reason is one word in CamelCase, of at most 64 letters")
	case len(o.Message) > longestMessage:
		return refusal(metav1.StatusReasonBadRequest, "message is longer than %d bytes", longestMessage)
	case o.ID != "" && !v1alpha1.ValidClusterID(o.ID):
		return refusal(metav1.StatusReasonBadRequest, "id is the UID of the cluster's namespace kube-system, and %q is none", o.ID)
	case len(o.Version) > most || len(o.ID) > most || len(o.Capacity) > most || len(o.Allocatable) > most:
		return refusal(metav1.StatusReasonBadRequest, "version, id, capacity and allocatable have at most %d bytes or entries", most)
	}
	return nil
}

func (r *request) keepHeartbeat(ctx context.Context, seen fleet.Observation) error {
	c, ok := r.view.view.Cluster()
	if !ok {
		return notInView(place{v1alpha1.ClusterResource, types.NamespacedName{Name: r.cluster}}, r.cluster)
	}
	said, err := json.Marshal(seen)
	if err != nil {
		return err
	}
	term := r.view.view.term
	lease := applycoordinationv1.Lease(v1alpha1.HeartbeatLease(r.cluster), v1alpha1.SystemNamespace).
		WithLabels(map[string]string{v1alpha1.HeartbeatLabel: r.cluster}).
		WithAnnotations(map[string]string{v1alpha1.ObservationAnnotation: string(said)}).
		// It goes with the Cluster.
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion(apiVersion).WithKind(clusterKind).WithName(c.Name).WithUID(c.UID)).
		WithSpec(applycoordinationv1.LeaseSpec().WithHolderIdentity(r.caller.Name).
			WithLeaseDurationSeconds(int32(v1alpha1.HeartbeatExpiry / time.Second)).
			WithRenewTime(metav1.NewMicroTime(term.Clock.Now())))
	leases := term.Kube.CoordinationV1().Leases(v1alpha1.SystemNamespace)
	how := metav1.ApplyOptions{FieldManager: reporterOf(r.cluster), Force: true}
	_, err = leases.Apply(ctx, lease, how)
	if apierrors.IsNotFound(err) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
		if _, err = term.Kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err == nil || apierrors.IsAlreadyExists(err) {
			_, err = leases.Apply(ctx, lease, how)
		}
	}
	if err != nil {
		return fmt.Errorf("keep the heartbeat of cluster %s: %w", r.cluster, err)
	}
	return nil
}
