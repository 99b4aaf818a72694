package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// serverUser is whom the audit log names for what a server does for itself.
const serverUser = "atoll:server"

// forgotten is after how long a server deletes what another, which never came
// back, left of itself.
const forgotten = 10 * time.Minute

// announcement is a Lease by which the fleet's controllers know that this server
// answers members, and where. A server that cannot write it, because the
// datastore does not answer it, should not be called by members either.
type announcement struct {
	leases coordinationclient.LeaseInterface
	clock  clock.WithTicker
	lease  *coordinationv1.Lease
	// others by name: what was last seen of them, and when that was new.
	others map[string]seenLease
	// renewed is when the Lease was last written, or first tried to be.
	renewed time.Time
	// lapse sends members away, who now should be calling others.
	lapse func()
}

type seenLease struct {
	version string
	at      time.Time
}

// announce keeps the Lease while the server runs, and deletes it when it stops.
func (s *Server) announce(ctx context.Context) error {
	if !s.awaitAPI(ctx) {
		return nil
	}
	// A member that is sent here before it is known what is exposed to it is refused,
	// and takes the group for gone for seconds.
	if _, err := s.directory.SharedGroups(ctx); err != nil {
		return nil // ctx ended
	}
	// Nor should it be sent to a server that would end all its watches.
	if err := s.directory.Warm(ctx); err != nil {
		return nil // ctx ended
	}
	client, err := kubernetes.NewForConfig(s.api.ClientConfig(serverUser))
	if err != nil {
		return fmt.Errorf("make a client of the workspace: %w", err)
	}
	if err := shipMembersFlow(ctx, client); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "Users of members share the requests of nobody in particular until this server starts again")
	}
	address := s.MemberAddress()
	sum := sha256.Sum256([]byte(s.name))
	a := &announcement{
		leases: client.CoordinationV1().Leases(v1alpha1.SystemNamespace),
		clock:  s.cfg.Clock,
		lease: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:        "server-" + hex.EncodeToString(sum[:8]),
				Labels:      map[string]string{v1alpha1.MemberEndpointLabel: s.cfg.Cluster},
				Annotations: map[string]string{v1alpha1.AddressAnnotation: address},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &s.name,
				LeaseDurationSeconds: ptr.To(int32(v1alpha1.MemberEndpointExpiry / time.Second)),
			},
		},
		others: map[string]seenLease{},
		lapse:  s.members.open.end,
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
	a.run(ctx, func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		return err
	})
	return nil
}

// run renews until ctx ends. What fails is tried again at the next turn.
func (a *announcement) run(ctx context.Context, makeNamespace func(context.Context) error) {
	ticker := a.clock.NewTicker(v1alpha1.MemberEndpointRenew)
	defer ticker.Stop()
	a.renewed = a.clock.Now()
	var lapses lapses
	for {
		err := a.renew(ctx)
		if apierrors.IsNotFound(err) {
			if err = makeNamespace(ctx); err == nil || apierrors.IsAlreadyExists(err) {
				err = a.renew(ctx)
			}
		}
		if err == nil {
			err = a.sweep(ctx)
		}
		if lapses.due(a.clock.Since(a.renewed)) {
			a.lapse()
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Could not tell the fleet where this server answers members; trying again", "lease", a.lease.Name)
		}
		select {
		case <-ctx.Done():
			a.withdraw(ctx)
			return
		case <-ticker.C():
		}
	}
}

// renew writes the Lease as it should be, whatever became of it.
func (a *announcement) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v1alpha1.MemberEndpointRenew)
	defer cancel()
	a.lease.Spec.RenewTime = &metav1.MicroTime{Time: a.clock.Now()}
	if a.lease.ResourceVersion != "" {
		written, err := a.leases.Update(ctx, a.lease, metav1.UpdateOptions{})
		if err == nil {
			a.written(written)
			return nil
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("renew: %w", err)
		}
	}
	a.lease.ResourceVersion, a.lease.UID = "", ""
	written, err := a.leases.Create(ctx, a.lease, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// Of this server before it started again, or somebody edited it.
		if written, err = a.leases.Get(ctx, a.lease.Name, metav1.GetOptions{}); err == nil {
			a.lease.ResourceVersion, a.lease.UID = written.ResourceVersion, written.UID
			written, err = a.leases.Update(ctx, a.lease, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	a.written(written)
	return nil
}

func (a *announcement) written(lease *coordinationv1.Lease) {
	a.lease.ResourceVersion, a.lease.UID = lease.ResourceVersion, lease.UID
	a.renewed = a.clock.Now()
}

// sweep deletes what servers left that are gone for good; of those at this one's
// address, which has taken their place, as soon as they do not renew: until then
// they share it, behind one balancer or on one node.
func (a *announcement) sweep(ctx context.Context) error {
	// From the cache: nothing depends on the last moment.
	all, err := a.leases.List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.MemberEndpointLabel, ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the other servers: %w", err)
	}
	now := a.clock.Now()
	for _, other := range all.Items {
		if other.Name == a.lease.Name {
			continue
		}
		last, known := a.others[other.Name]
		if !known || last.version != other.ResourceVersion {
			last = seenLease{other.ResourceVersion, now}
			a.others[other.Name] = last
		}
		replaced := other.Annotations[v1alpha1.AddressAnnotation] == a.lease.Annotations[v1alpha1.AddressAnnotation]
		silent := now.Sub(last.at)
		if silent < v1alpha1.MemberEndpointExpiry || silent < forgotten && !replaced {
			continue
		}
		delete(a.others, other.Name)
		err := a.leases.Delete(ctx, other.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other.UID, ResourceVersion: &other.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete lease %s of a server that is gone: %w", other.Name, err)
		}
	}
	return nil
}

// withdraw says that this server is about to stop, so that members call others.
func (a *announcement) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v1alpha1.MemberEndpointRenew)
	defer cancel()
	if a.lease.UID == "" {
		return
	}
	err := a.leases.Delete(ctx, a.lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.lease.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.V(2).InfoS("Could not take back where this server answers members; it will be noticed", "lease", a.lease.Name, "err", err)
	}
}
