// Package coordination lets operators that run in many clusters, and share objects in
// Atoll, elect one leader.
//
// A Lease of group coordination.atoll.dev is held by one process across all clusters.
// [NewLock] makes client-go's leader election, and so controller-runtime's, work on it
// unchanged. The leader marks its writes with a [Token]. After [InstallFence], the server
// refuses the writes of a former leader that has not noticed yet that it lost the lease.
// DESIGN.md describes what that guarantees, and what it does not.
//
// The package depends only on a server that serves the kind: import it into any operator.
package coordination

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// ErrNotHeld is returned by [Lock.Token] while the process, to its knowledge, does not hold
// the lease.
var ErrNotHeld = errors.New("lease is not held")

// requestTimeout bounds one request for a lease. It is half of leader election's default
// renew deadline, so that one hanging request does not cost the leadership.
const requestTimeout = 5 * time.Second

// A Lock is one process's access to a Lease of coordination.atoll.dev. It implements
// [resourcelock.Interface]. Leader election calls it from one goroutine; Token may be
// called from any.
type Lock struct {
	// Events gets an event for each change of leadership; none if nil.
	Events resourcelock.EventRecorder

	namespace, name, identity string
	leases                    dynamic.ResourceInterface

	mu    sync.Mutex
	lease *coordinationv1.Lease // as last read or written
	token Token                 // zero unless this process holds the lease
}

var _ resourcelock.Interface = (*Lock)(nil)

// Identity returns a unique name for this process across all clusters: CLUSTER/HOST_UUID.
func Identity(cluster string) (string, error) {
	if cluster == "" || strings.Contains(cluster, "/") {
		return "", fmt.Errorf("identity in cluster %q: specify the name of the Cluster in Atoll", cluster)
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("identity in cluster %s: %w", cluster, err)
	}
	return fmt.Sprintf("%s/%s_%s", cluster, host, uuid.NewUUID()), nil
}

// NewLock creates a lock on a lease, which leader election creates if it does not exist.
// The config is for an API server that serves the shared kind: a member's to which the
// group is exposed, or Atoll's. The identity has the form CLUSTER/INSTANCE: pods of one
// StatefulSet in two clusters have the same names, and two processes with one identity
// would both lead.
func NewLock(cfg *rest.Config, namespace, name, identity string) (*Lock, error) {
	fail := func(err error) (*Lock, error) {
		return nil, fmt.Errorf("lock on Lease %s/%s: %w", namespace, name, err)
	}
	if namespace == "" || name == "" {
		return fail(errors.New("namespace and name are required"))
	}
	if cluster, instance, ok := strings.Cut(identity, "/"); !ok || cluster == "" || instance == "" {
		return fail(fmt.Errorf("identity %q does not have the form CLUSTER/INSTANCE: use coordination.Identity", identity))
	}
	cfg = rest.AddUserAgent(rest.CopyConfig(cfg), "leader-election")
	if cfg.Timeout == 0 || cfg.Timeout > requestTimeout {
		cfg.Timeout = requestTimeout
	}
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fail(err)
	}
	return &Lock{
		namespace: namespace, name: name, identity: identity,
		leases: client.Resource(LeaseResource).Namespace(namespace),
	}, nil
}

// Token returns the token with which the holder marks its writes. It returns ErrNotHeld
// until this process has taken the lease, and once it knows that it has lost it. It makes
// no request: a process that was paused gets its old token, and the fence refuses it.
func (l *Lock) Token() (Token, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.token.isZero() {
		return Token{}, fmt.Errorf("token of Lease %s: %w by %s", l.Describe(), ErrNotHeld, l.identity)
	}
	return l.token, nil
}

// Get reads the lease. The returned raw bytes change with every renewal, regardless of the
// holder's clock. Candidates measure by their own clocks how long the bytes have been
// unchanged.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	obj, err := l.leases.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err // leader election handles NotFound
	}
	lease, err := leaseFrom(obj)
	if err != nil {
		return nil, nil, err
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	raw, err := json.Marshal(struct {
		*resourcelock.LeaderElectionRecord
		UID        types.UID
		Generation int64
	}{record, lease.UID, lease.Generation})
	if err != nil {
		return nil, nil, fmt.Errorf("read Lease %s: %w", l.Describe(), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	if !l.token.matches(lease) || holder(lease) != l.identity {
		l.token = Token{}
	}
	return record, raw, nil
}

// Create creates the lease, held by the record's holder.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name},
		Spec:       resourcelock.LeaderElectionRecordToLeaseSpec(&record),
	}
	// Transitions are always set, so that a fence can compare them.
	lease.Spec.LeaseTransitions = new(int32(record.LeaderTransitions))
	obj, err := leaseTo(lease)
	if err != nil {
		return err
	}
	if obj, err = l.leases.Create(ctx, obj, metav1.CreateOptions{}); err != nil {
		return err
	}
	return l.recordWrite(obj)
}

// Update writes the record into the lease, unless another client has changed the lease
// since it was last read or written here.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	last := l.lease
	l.mu.Unlock()
	if last == nil {
		return fmt.Errorf("update Lease %s: it has not been read or created yet", l.Describe())
	}
	// On exit, leader election reads the lease and releases it if it believed to hold it. A
	// process that slept through its own succession would release its successor's lease.
	if record.HolderIdentity == "" && holder(last) != l.identity {
		return fmt.Errorf("release Lease %s: %w: %s holds it now", l.Describe(), ErrNotHeld, holder(last))
	}
	lease := last.DeepCopy()
	lease.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	lease.Spec.LeaseTransitions = new(int32(record.LeaderTransitions))
	obj, err := leaseTo(lease)
	if err != nil {
		return err
	}
	if obj, err = l.leases.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return l.recordWrite(obj)
}

// recordWrite records a lease that this process has written.
func (l *Lock) recordWrite(obj object) error {
	lease, err := leaseFrom(obj)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	switch {
	case holder(lease) != l.identity:
		l.token = Token{}
	case !l.token.matches(lease):
		l.token = tokenOf(lease)
	}
	return nil
}

// RecordEvent records an event about this process's leadership.
func (l *Lock) RecordEvent(what string) {
	l.mu.Lock()
	lease := l.lease
	l.mu.Unlock()
	if l.Events == nil || lease == nil {
		return
	}
	subject := &coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{APIVersion: LeaseResource.GroupVersion().String(), Kind: leaseKind},
		ObjectMeta: lease.ObjectMeta,
	}
	l.Events.Eventf(subject, corev1.EventTypeNormal, "LeaderElection", "%s %s", l.identity, what)
}

// Identity returns the identity of the lock.
func (l *Lock) Identity() string { return l.identity }

// Describe returns the lease's namespace and name.
func (l *Lock) Describe() string { return l.namespace + "/" + l.name }
