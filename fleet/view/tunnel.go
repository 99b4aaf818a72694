package view

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tunnel serves the tunnel of the cluster's syncer for as long as the syncer may read its view.
func (h *Host) tunnel(w http.ResponseWriter, r *request) {
	cluster, exists := r.caches.session.Clusters.Get(r.cluster)
	switch {
	case !Allows(r.caller, r.URL.Path):
		writeError(w, newStatusError(metav1.StatusReasonForbidden, "only the syncer of cluster %q may open its tunnel", r.cluster))
	case h.cfg.Tunnels == nil, !exists:
		writeError(w, newStatusError(metav1.StatusReasonServiceUnavailable, "this server accepts no tunnel of cluster %s at the moment; retry", r.cluster))
	default:
		h.cfg.Tunnels.Accept(w, r.Request, cluster, func() error { return h.mayKeepTunnel(r) })
	}
}

// mayKeepTunnel returns why the syncer that opened a tunnel may not have it any more.
func (h *Host) mayKeepTunnel(r *request) error {
	if r.caches.ctx.Err() != nil {
		return errNotRunning
	}
	if t := r.TLS; t != nil && len(t.PeerCertificates) > 0 && h.cfg.Clock.Now().After(t.PeerCertificates[0].NotAfter) {
		return newStatusError(metav1.StatusReasonUnauthorized, "the certificate of the syncer of cluster %s has expired", r.cluster)
	}
	cluster, exists := r.caches.session.Clusters.Get(r.cluster)
	return authorizeSyncer(cluster, exists, r.cluster, r.caller.Groups)
}
