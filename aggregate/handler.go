package aggregate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

// Handler serves the port that member kube-apiservers connect to.
//
// The port's TLS configuration must request client certificates without verifying them
// (tls.RequestClientCert). Which authority is valid depends on the member, and the
// handler decides that. It passes accepted requests to the next handler with the user
// in the request's context (request.UserFrom), where no client can put one. It removes
// all headers and certificates that identify a user.
type Handler struct {
	members Members
	next    http.Handler
	parse   request.RequestInfoResolver
	codec   *codec
	openAPI *prunedCache
	metrics *Metrics // may be nil
}

// NewHandler returns a handler that passes members' requests to next, the workspace's
// ordinary handler chain. next has to authenticate by request.UserFrom. metrics may be
// nil.
func NewHandler(members Members, next http.Handler, metrics *Metrics) *Handler {
	return &Handler{
		members: members,
		next:    next,
		parse: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		codec:   newCodec(),
		openAPI: &prunedCache{documents: map[string]prunedDocument{}},
		metrics: metrics,
	}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = reconnectOn503(w, r)
	suppressCacheControl(w.Header())
	roster, replaced := h.members.Roster()
	if roster == nil {
		h.metrics.count("", resultUnavailable)
		writeError(w, unavailable("this server has not yet read the list of member clusters; try again"))
		return
	}
	m, err := roster.verify(clientCertificates(r))
	if err != nil {
		h.metrics.count("", resultUnauthorized)
		klog.V(2).InfoS("request on the member port refused", "from", r.RemoteAddr, "reason", err.Error())
		writeError(w, unauthorized(err))
		return
	}
	who, err := m.identify(r.Header)
	if err != nil {
		h.metrics.count(m.name, resultUnauthorized)
		klog.V(2).InfoS("request on the member port refused", "cluster", m.name, "from", r.RemoteAddr, "reason", err.Error())
		writeError(w, unauthorized(err))
		return
	}
	what, refusal := m.classify(r.Method, r.URL.Path)
	if refusal != nil {
		h.metrics.count(m.name, resultRefused)
		writeError(w, refusal)
		return
	}
	h.metrics.count(m.name, resultAccepted)

	in := h.forwardedRequest(r, m, who)
	switch what {
	case discovery:
		h.discovery(w, in, m)
	case openAPIV2:
		h.openAPIV2(w, in, m)
	case openAPIV3:
		h.openAPIV3(w, in, m)
	case groupDocument:
		h.groupDocument(w, in)
	default:
		ctx, cancel := context.WithCancel(in.Context())
		defer cancel()
		h.objects(w, in.WithContext(ctx), who, func(group string) { go h.endWhenWithdrawn(ctx, cancel, m, group, replaced) })
	}
}

// endWhenWithdrawn ends a watch as soon as the member may no longer have it. Otherwise
// a watch could run for as long as the client likes.
func (h *Handler) endWhenWithdrawn(ctx context.Context, end func(), m *member, group string, replaced <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		}
		var roster *Roster
		if roster, replaced = h.members.Roster(); roster == nil || !roster.stillServes(m, group) {
			klog.V(2).InfoS("watch on the member port ended: API group withdrawn", "cluster", m.name, "group", group)
			end()
			return
		}
	}
}

// objects forwards a request for objects. A request of a member's controller goes
// through the guard for that controller.
func (h *Handler) objects(w http.ResponseWriter, in *http.Request, who requester, watched func(group string)) {
	info, err := h.parse.NewRequestInfo(in)
	if err != nil || !info.IsResourceRequest {
		writeError(w, status(http.StatusBadRequest, metav1.StatusReasonBadRequest, "not a request for objects: "+in.URL.Path))
		return
	}
	if info.Verb == "watch" {
		watched(info.APIGroup)
	}
	switch identifyController(who.name, in.UserAgent()) {
	case namespaceController:
		h.guardNamespaces(w, in, info)
	case collector:
		h.guardOwners(w, in, who, info)
	case migrator:
		h.guardStorage(w, in, info)
	default:
		h.next.ServeHTTP(w, in)
	}
}

// forwardedRequest returns the request for the next handler.
func (h *Handler) forwardedRequest(r *http.Request, m *member, who requester) *http.Request {
	in := r.WithContext(request.WithUser(r.Context(), who.info))
	in.Header = r.Header.Clone()
	m.strip(in.Header)
	// The certificate was the proxy's, not the user's.
	in.TLS = &tls.ConnectionState{
		Version:            r.TLS.Version,
		HandshakeComplete:  r.TLS.HandshakeComplete,
		CipherSuite:        r.TLS.CipherSuite,
		NegotiatedProtocol: r.TLS.NegotiatedProtocol,
		ServerName:         r.TLS.ServerName,
	}
	return in
}

// suppressCacheControl keeps the chain from adding the Cache-Control header. The
// member's API server has already set it before it proxies, and clients would get it
// twice.
func suppressCacheControl(h http.Header) { h["Cache-Control"] = nil }

func clientCertificates(r *http.Request) []*x509.Certificate {
	if r.TLS == nil {
		return nil
	}
	return r.TLS.PeerCertificates
}
