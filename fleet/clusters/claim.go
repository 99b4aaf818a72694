package clusters

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

const (
	// renewClaim is the age at which a claim is renewed, with the next probe.
	renewClaim = 8 * time.Second
	// claimExpiry is how long a claim may be without a renewal before another database with the same
	// data replaces it: a standby that has taken over must.
	claimExpiry = 25 * time.Second
)

// standing is what a claim means for this control plane.
type standing int

const (
	// undecided: it is not known yet whether the holder is alive.
	undecided standing = iota
	// held: this process holds the claim.
	held
	// free: this process may take the claim.
	free
	// taken: the member belongs to another control plane.
	taken
)

// claimant is this control plane, as one process that claims a member.
type claimant struct {
	fleet.ControlPlane
	// session identifies the process and its leadership.
	session string
}

// judge decides about the claim in a member; nil if it has none. takeOver is the holder that a user lets
// this control plane replace. had says whether this session has held the claim before, and renewed
// whether it saw another one renew it. unchanged is the time since.
//
// Another control plane is never replaced without a user's word, however long it is silent: perhaps it only
// cannot reach the member now, and this one is a copy for a drill. With the same data it may be a copy of
// the files, or this control plane itself after a failover of its database. So it is replaced when
// it no longer renews its claim.
func (c claimant) judge(claim *coordinationv1.Lease, takeOver string, had, renewed bool, unchanged time.Duration) standing {
	holder := ""
	if claim != nil {
		holder = ptr.Deref(claim.Spec.HolderIdentity, "")
	}
	id, database, _ := strings.Cut(holder, "/")
	switch {
	case holder == "":
		return free
	case id == c.ID && claim.Annotations[v1alpha1.ClaimSessionAnnotation] == c.session:
		return held
	case holder == takeOver:
		return free
	case id != c.ID:
		return taken
	case database == c.Database && !had, unchanged >= claimExpiry:
		return free // the leader has changed
	case had, renewed:
		return taken
	}
	return undecided
}

// claims claims one member.
type claims struct {
	claimant
	leases typedcoordinationv1.LeaseInterface
	clock  clock.PassiveClock

	last    *coordinationv1.Lease // as last read or written
	at      time.Time             // when it was last seen to change, or was renewed
	had     bool
	renewed bool
}

func newClaims(access *rest.Config, c claimant, clock clock.PassiveClock) (*claims, error) {
	cfg := rest.CopyConfig(access)
	cfg.Timeout = probeTimeout
	cfg.UserAgent = FieldManager
	client, err := typedcoordinationv1.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &claims{claimant: c, leases: client.Leases(metav1.NamespaceSystem), clock: clock}, nil
}

// check claims the member of a Cluster, or renews the claim, and amends the result of a successful
// probe. A cluster that leaves is released instead. known is false while it is undecided whether the
// member may be claimed.
func (c *claims) check(ctx context.Context, cluster *v1alpha1.Cluster, r result) (_ result, known bool) {
	if c.ID == "" || !r.ready {
		return r, true
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	got, err := c.advance(ctx, cluster)
	switch {
	case apierrors.IsForbidden(err):
		// Like a cluster without permission to read its ID.
		r.claim = c.own()
		r.message += "; the identity in its kubeconfig may not get, create and update Leases in its namespace kube-system, so a copy of this control plane would write to it too"
	case err != nil:
		r.ready, r.reason, r.message = false, v1alpha1.ReasonClusterNotReady,
			fmt.Sprintf("cannot renew the claim (Lease %s/%s in the cluster): %v", metav1.NamespaceSystem, v1alpha1.ClaimLease, err)
	case got == undecided:
		return r, false
	case got == taken:
		r.claim = claimOf(c.last)
		r.ready, r.reason, r.message = false, v1alpha1.ReasonOtherControlPlane, c.takenText(cluster.Name)
	default:
		r.claim = c.own()
	}
	return r, true
}

// own has no address: each change of the leader would change it, for every cluster.
func (c *claims) own() *v1alpha1.ClusterClaim { return &v1alpha1.ClusterClaim{Holder: c.Holder()} }

func claimOf(lease *coordinationv1.Lease) *v1alpha1.ClusterClaim {
	const most = 256 // a member could return any text
	cut := func(text string) string { return text[:min(len(text), most)] }
	return &v1alpha1.ClusterClaim{Holder: cut(ptr.Deref(lease.Spec.HolderIdentity, "")), Server: cut(lease.Annotations[v1alpha1.ClaimServerAnnotation])}
}

func (c *claims) takenText(cluster string) string {
	other := claimOf(c.last)
	id, _, _ := strings.Cut(other.Holder, "/")
	what := "another control plane, " + id
	if id == c.ID {
		what = "a control plane on another copy of this one's database"
	}
	if other.Server != "" {
		what += ", whose server is " + other.Server
	}
	text := fmt.Sprintf("the cluster belongs to %s. This one writes nothing to it, and running objects keep running. If this one is to replace it: `atoll clusters take-over %s`", what, cluster)
	if id == c.ID {
		text += fmt.Sprintf(". When the other has not renewed its claim for %s, this one replaces it", claimExpiry)
	}
	return text
}

// advance reads the claim if necessary, and takes, renews or releases it.
func (c *claims) advance(ctx context.Context, cluster *v1alpha1.Cluster) (standing, error) {
	leaving, _ := cluster.Leaving()
	if c.had && !leaving && c.holds() && ptr.Deref(c.last.Spec.HolderIdentity, "") == c.Holder() && c.clock.Since(c.at) < renewClaim {
		return held, nil
	}
	if !c.holds() || leaving {
		if err := c.read(ctx); err != nil {
			return undecided, err
		}
	}
	got := c.judge(c.last, cluster.Annotations[v1alpha1.TakeOverAnnotation], c.had, c.renewed, c.clock.Since(c.at))
	switch {
	case leaving && got == held:
		return held, c.release(ctx)
	case leaving && got == free:
		return held, nil
	case got == held || got == free:
		err := c.write(ctx)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
			// Another process was faster, or the claim was deleted.
			if err := c.read(ctx); err != nil {
				return undecided, err
			}
			got = c.judge(c.last, cluster.Annotations[v1alpha1.TakeOverAnnotation], c.had, c.renewed, c.clock.Since(c.at))
			if got == held || got == free {
				err = c.write(ctx)
			} else {
				err = nil
			}
		}
		if err != nil {
			return undecided, err
		}
		if got == free {
			got = held
		}
		return got, nil
	}
	return got, nil
}

// holds reports whether the claim was this process's when it was last seen.
func (c *claims) holds() bool {
	return c.last != nil && c.last.Annotations[v1alpha1.ClaimSessionAnnotation] == c.session
}

func (c *claims) read(ctx context.Context) error {
	lease, err := c.leases.Get(ctx, v1alpha1.ClaimLease, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.last, c.renewed = nil, false
		return nil
	}
	if err != nil {
		return err
	}
	if c.last == nil || c.last.ResourceVersion != lease.ResourceVersion {
		c.renewed = c.last != nil && !c.holds()
		c.at = c.clock.Now()
	}
	c.last = lease
	return nil
}

func (c *claims) write(ctx context.Context) error {
	now := metav1.NewMicroTime(c.clock.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.ClaimLease, Namespace: metav1.NamespaceSystem}}
	if c.last != nil {
		lease = c.last.DeepCopy()
	}
	if ptr.Deref(lease.Spec.HolderIdentity, "") != c.Holder() {
		lease.Spec.AcquireTime = &now
		if c.last != nil {
			lease.Spec.LeaseTransitions = ptr.To(ptr.Deref(lease.Spec.LeaseTransitions, 0) + 1)
		}
	}
	lease.Spec.HolderIdentity = ptr.To(c.Holder())
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(claimExpiry / time.Second))
	lease.Spec.RenewTime = &now
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.ClaimServerAnnotation, c.Server)
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, v1alpha1.ClaimSessionAnnotation, c.session)
	var err error
	if c.last == nil {
		lease, err = c.leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: FieldManager})
	} else {
		lease, err = c.leases.Update(ctx, lease, metav1.UpdateOptions{FieldManager: FieldManager})
	}
	if err != nil {
		return err
	}
	c.last, c.at, c.had, c.renewed = lease, c.clock.Now(), true, false
	return nil
}

// leave releases the member of a Cluster, if this process holds the claim.
func (c *claims) leave(ctx context.Context) error {
	if c.ID == "" {
		return nil
	}
	if err := c.read(ctx); err != nil || !c.holds() {
		if apierrors.IsForbidden(err) {
			return nil // then it was never claimed
		}
		return err
	}
	return c.release(ctx)
}

// release deletes the claim of this process.
func (c *claims) release(ctx context.Context) error {
	err := c.leases.Delete(ctx, v1alpha1.ClaimLease, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &c.last.UID, ResourceVersion: &c.last.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	c.last = nil
	return nil
}
