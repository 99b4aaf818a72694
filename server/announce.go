package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// serverUser is the user in the audit log for the server's own requests.
const serverUser = "atoll:server"

const leasePrefix = "server-"

// abandonedAfter is how long after the last renewal a server deletes the Lease of
// another server that has not come back.
const abandonedAfter = 10 * time.Minute

// announcement is a Lease that tells the fleet's controllers that this server serves
// members, and at which address. A server that cannot write it, because its datastore
// does not respond, should not be called by members either.
type announcement struct {
	leases coordinationclient.LeaseInterface
	clock  clock.WithTicker
	lease  *coordinationv1.Lease
	// others maps the other servers' Leases to their last observed version and the time
	// of that observation.
	others map[string]observedLease
	// file contains the name of the Lease of the server that ran in this data directory before,
	// which did not delete it if it crashed.
	file string
	// renewed is when the Lease was last written, or when writing was first attempted.
	renewed time.Time
	// disconnect disconnects members, so that they call other servers.
	disconnect func()
}

type observedLease struct {
	version string
	at      time.Time
}

// announce renews the Lease while the server runs, and deletes it when the server
// stops.
func (s *Server) announce(ctx context.Context) error {
	if !awaitServing(ctx, s.api) {
		return nil
	}
	// If a member connects before the server knows what is exposed to it, its requests
	// are refused, and the member takes the group for removed for seconds.
	if _, err := s.directory.SharedGroups(ctx); err != nil {
		return nil // ctx ended
	}
	// Nor should it connect to a server that would reject all its watches.
	if err := s.directory.Warm(ctx); err != nil {
		return nil // ctx ended
	}
	client, err := kubernetes.NewForConfig(s.api.ClientConfig(serverUser))
	if err != nil {
		return fmt.Errorf("create a client for the workspace: %w", err)
	}
	if err := createMembersFlow(ctx, client); err != nil && ctx.Err() == nil {
		klog.ErrorS(err, "cannot create the FlowSchema for users of members: they get the default priority until this server restarts")
	}
	address := s.MemberAddress()
	sum := sha256.Sum256([]byte(s.name))
	a := &announcement{
		leases: client.CoordinationV1().Leases(v1alpha1.SystemNamespace),
		clock:  s.cfg.Clock,
		lease: &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Name:        leasePrefix + hex.EncodeToString(sum[:8]),
				Labels:      map[string]string{v1alpha1.MemberEndpointLabel: s.cfg.Cluster},
				Annotations: map[string]string{v1alpha1.AddressAnnotation: address},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &s.name,
				LeaseDurationSeconds: ptr.To(int32(v1alpha1.MemberEndpointExpiry / time.Second)),
			},
		},
		others:     map[string]observedLease{},
		file:       filepath.Join(s.cfg.DataDir, leaseFile),
		disconnect: s.members.open.closeAll,
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
	a.run(ctx, func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		return err
	})
	return nil
}

// run renews the Lease until ctx ends. A failed renewal is retried at the next
// interval.
func (a *announcement) run(ctx context.Context, makeNamespace func(context.Context) error) {
	ticker := a.clock.NewTicker(v1alpha1.MemberEndpointRenew)
	defer ticker.Stop()
	a.renewed = a.clock.Now()
	var lapses disconnects
	succeeded := false
	for {
		err := a.renew(ctx)
		if apierrors.IsNotFound(err) {
			if err = makeNamespace(ctx); err == nil || apierrors.IsAlreadyExists(err) {
				err = a.renew(ctx)
			}
		}
		if err == nil && !succeeded {
			err = a.succeed(ctx)
			succeeded = err == nil
		}
		if err == nil {
			err = a.sweep(ctx)
		}
		if lapses.due(a.clock.Since(a.renewed)) {
			a.disconnect()
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "cannot renew the server's Lease; retrying", "lease", a.lease.Name)
		}
		select {
		case <-ctx.Done():
			a.withdraw(ctx)
			return
		case <-ticker.C():
		}
	}
}

// renew writes the desired Lease, also if it was changed or deleted.
func (a *announcement) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v1alpha1.MemberEndpointRenew)
	defer cancel()
	a.lease.Spec.RenewTime = &metav1.MicroTime{Time: a.clock.Now()}
	if a.lease.ResourceVersion != "" {
		written, err := a.leases.Update(ctx, a.lease, metav1.UpdateOptions{})
		if err == nil {
			a.recordRenewal(written)
			return nil
		}
		if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("renew: %w", err)
		}
	}
	a.lease.ResourceVersion, a.lease.UID = "", ""
	written, err := a.leases.Create(ctx, a.lease, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// Written by this server before it restarted, or edited by a user.
		if written, err = a.leases.Get(ctx, a.lease.Name, metav1.GetOptions{}); err == nil {
			a.lease.ResourceVersion, a.lease.UID = written.ResourceVersion, written.UID
			written, err = a.leases.Update(ctx, a.lease, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	a.recordRenewal(written)
	return nil
}

// leaseFile is the name of the file in the data directory with the name of the server's Lease.
const leaseFile = "lease"

// succeed deletes the Lease of the server that ran in this data directory before. Only one
// server can: until the Lease expires, members would be told to call an address at which
// nobody listens.
func (a *announcement) succeed(ctx context.Context) error {
	content, err := os.ReadFile(a.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the name of the former Lease: %w", err)
	}
	if former := strings.TrimSpace(string(content)); former != a.lease.Name && strings.HasPrefix(former, leasePrefix) {
		if err := a.leases.Delete(ctx, former, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete the former Lease %s: %w", former, err)
		}
	}
	return writeIfChanged(a.file, []byte(a.lease.Name+"\n"))
}

func (a *announcement) recordRenewal(lease *coordinationv1.Lease) {
	a.lease.ResourceVersion, a.lease.UID = lease.ResourceVersion, lease.UID
	a.renewed = a.clock.Now()
}

// sweep deletes the Leases of servers that are gone for good. A Lease with this
// server's own address is deleted as soon as it is not renewed: this server has
// replaced the other. While both are renewed, they share the address, behind one load
// balancer or on one node.
func (a *announcement) sweep(ctx context.Context) error {
	// From the watch cache: slightly stale data is fine.
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
			last = observedLease{other.ResourceVersion, now}
			a.others[other.Name] = last
		}
		replaced := other.Annotations[v1alpha1.AddressAnnotation] == a.lease.Annotations[v1alpha1.AddressAnnotation]
		silent := now.Sub(last.at)
		if silent < v1alpha1.MemberEndpointExpiry || silent < abandonedAfter && !replaced {
			continue
		}
		delete(a.others, other.Name)
		err := a.leases.Delete(ctx, other.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other.UID, ResourceVersion: &other.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete lease %s of a stopped server: %w", other.Name, err)
		}
	}
	return nil
}

// withdraw announces that this server is about to stop, so that members call others.
func (a *announcement) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v1alpha1.MemberEndpointRenew)
	defer cancel()
	if a.lease.UID == "" {
		return
	}
	err := a.leases.Delete(ctx, a.lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &a.lease.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		klog.V(2).InfoS("cannot delete the server's Lease; it will expire", "lease", a.lease.Name, "err", err)
	}
}
