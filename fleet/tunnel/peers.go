package tunnel

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// peers are the tunnels of all servers, as Leases name them. A Lease is written when a syncer opens a tunnel, not
// periodically: thousands of tunnels would otherwise write all the time. So it may name a server that has lost the tunnel
// or is gone, which shows when that is asked.
type peers struct {
	cfg *HubConfig

	mu      sync.Mutex
	holders map[string]holder // by cluster
	read    time.Time
}

// holder is the server that has a tunnel.
type holder struct{ identity, address string }

// holdersTTL is how long the list of holders is used: each request needs it.
const holdersTTL = time.Second

// holder returns which other server has the tunnel of a cluster; false if none is known.
func (p *peers) holder(ctx context.Context, cluster string) (holder, bool) {
	now := p.cfg.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holders == nil || now.Sub(p.read) >= holdersTTL {
		if found, err := p.list(ctx); err == nil { // otherwise, the last known ones
			p.holders, p.read = found, now
		}
	}
	h, ok := p.holders[cluster]
	return h, ok && h.identity != p.cfg.Identity
}

func (p *peers) list(ctx context.Context) (map[string]holder, error) {
	client, err := p.cfg.Client()
	if err != nil {
		return nil, err
	}
	leases, err := client.CoordinationV1().Leases(v1alpha1.SystemNamespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.TunnelLabel, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	out := map[string]holder{}
	for _, lease := range leases.Items {
		if id, at := lease.Spec.HolderIdentity, lease.Annotations[v1alpha1.TunnelAddressAnnotation]; id != nil && at != "" {
			out[lease.Labels[v1alpha1.TunnelLabel]] = holder{*id, at}
		}
	}
	return out, nil
}

// announce names this server as the one with the tunnel of a cluster. It tries until ctx ends.
func (p *peers) announce(ctx context.Context, cluster string, uid types.UID) {
	_ = wait.PollUntilContextCancel(ctx, 5*time.Second, true, func(ctx context.Context) (bool, error) {
		err := p.write(ctx, cluster, uid)
		if err != nil && ctx.Err() == nil {
			p.cfg.Log.Warn("other servers do not know of a syncer's tunnel yet; retrying", "cluster", cluster, "error", err)
		}
		return err == nil, nil
	})
}

func (p *peers) write(ctx context.Context, cluster string, uid types.UID) error {
	client, err := p.cfg.Client()
	if err != nil {
		return err
	}
	api := client.CoordinationV1().Leases(v1alpha1.SystemNamespace)
	now := metav1.NewMicroTime(p.cfg.Clock.Now())
	want := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TunnelLease(cluster), Labels: map[string]string{v1alpha1.TunnelLabel: cluster},
			Annotations:     map[string]string{v1alpha1.TunnelAddressAnnotation: p.cfg.Address},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.Group + "/" + v1alpha1.Version, Kind: "Cluster", Name: cluster, UID: uid}}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &p.cfg.Identity, AcquireTime: &now},
	}
	_, err = api.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) { // no server has needed the namespace before
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
	}
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	existing, err := api.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	want.ResourceVersion = existing.ResourceVersion
	_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	return err
}

// dial opens a connection to the syncer of a cluster by way of the server that has its tunnel.
func (p *peers) dial(ctx context.Context, cluster string, h holder) (net.Conn, error) {
	cfg, err := p.cfg.PeerTLS()
	if err != nil {
		return nil, err
	}
	conn, err := dial(ctx, "https://"+h.address+ServerPath(cluster), peerProtocol, websocket.Dialer{TLSClientConfig: cfg}, nil)
	if err != nil {
		return nil, fmt.Errorf("reach cluster %s by way of the server at %s, which has its tunnel: %w", cluster, h.address, err)
	}
	return conn, nil
}
