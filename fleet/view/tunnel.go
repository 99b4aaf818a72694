package view

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tunnel opens the tunnel of the cluster's syncer, which exists for as long as the syncer may read its view. The tunnel needs
// the caches until it ends, longer than the request lasts.
func (h *Host) tunnel(w http.ResponseWriter, r *request) {
	cluster, exists := r.caches.session.Clusters.Get(r.cluster)
	switch {
	case !Allows(r.caller, r.URL.Path):
		writeError(w, newStatusError(metav1.StatusReasonForbidden, "only the syncer of cluster %q may open its tunnel", r.cluster))
	case h.cfg.Tunnels == nil, !exists:
		writeError(w, newStatusError(metav1.StatusReasonServiceUnavailable, "this server accepts no tunnel of cluster %s at the moment; retry", r.cluster))
	default:
		h.hold(r.caches)
		holder := tunnelHolder{host: h, caches: r.caches, cluster: cluster.Name, groups: r.caller.Groups}
		if t := r.TLS; t != nil && len(t.PeerCertificates) > 0 {
			holder.expires = t.PeerCertificates[0].NotAfter
		}
		h.cfg.Tunnels.Accept(w, r.Request, cluster, holder.mayKeep, holder.release)
	}
}

// tunnelHolder is the syncer that has a tunnel. It does not refer to the request, which would stay in memory as long.
type tunnelHolder struct {
	host    *Host
	caches  *caches
	cluster string
	groups  []string
	// expires is the end of the certificate with which the syncer opened the tunnel; zero if it had none.
	expires time.Time
}

// mayKeep returns why the syncer may not have the tunnel any more.
func (t tunnelHolder) mayKeep() error {
	if t.caches.ctx.Err() != nil {
		return errNotRunning
	}
	if !t.expires.IsZero() && t.host.cfg.Clock.Now().After(t.expires) {
		return newStatusError(metav1.StatusReasonUnauthorized, "the certificate of the syncer of cluster %s has expired", t.cluster)
	}
	cluster, exists := t.caches.session.Clusters.Get(t.cluster)
	return authorizeSyncer(cluster, exists, t.cluster, t.groups)
}

func (t tunnelHolder) release() { t.host.release(t.caches) }
