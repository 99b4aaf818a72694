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
// The port's TLS must request client certificates and not verify them
// (tls.RequestClientCert): which authority counts depends on the member, and is
// decided here. What passes goes to the next handler with the user in the
// request's context (request.UserFrom), where nothing from outside can put one,
// and without any header or certificate that says who the user is.
type Handler struct {
	members Members
	next    http.Handler
	parse   request.RequestInfoResolver
	codec   *codec
	openAPI *pruned
}

// NewHandler serves members with what next, the workspace's ordinary chain of
// handlers, answers. next has to authenticate by request.UserFrom.
func NewHandler(members Members, next http.Handler) *Handler {
	return &Handler{
		members: members,
		next:    next,
		parse: &request.RequestInfoFactory{
			APIPrefixes:          sets.NewString("api", "apis"),
			GrouplessAPIPrefixes: sets.NewString("api"),
		},
		codec:   newCodec(),
		openAPI: &pruned{documents: map[string]prunedDocument{}},
	}
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w = handOver(w, r)
	notCacheControl(w.Header())
	roster, replaced := h.members.Roster()
	if roster == nil {
		refuse(w, unavailable("this server has not yet read which clusters there are; ask again"))
		return
	}
	m, err := roster.verify(clientCertificates(r))
	if err != nil {
		klog.V(2).InfoS("Refused on the member port", "from", r.RemoteAddr, "reason", err.Error())
		refuse(w, unauthorized(err))
		return
	}
	who, err := m.identify(r.Header)
	if err != nil {
		klog.V(2).InfoS("Refused on the member port", "cluster", m.name, "from", r.RemoteAddr, "reason", err.Error())
		refuse(w, unauthorized(err))
		return
	}
	what, refusal := m.locate(r.Method, r.URL.Path)
	if refusal != nil {
		refuse(w, refusal)
		return
	}

	in := h.inner(r, m, who)
	switch what {
	case discovery:
		h.discovery(w, in, m)
	case openAPIV2:
		h.openAPIV2(w, in, m)
	case openAPIV3:
		h.openAPIV3(w, in, m)
	case groupDocument:
		h.next.ServeHTTP(w, in)
	default:
		ctx, cancel := context.WithCancel(in.Context())
		defer cancel()
		h.objects(w, in.WithContext(ctx), who, func(group string) { go h.endWhenWithdrawn(ctx, cancel, m, group, replaced) })
	}
}

// endWhenWithdrawn ends a watch as soon as the member may no longer have it: one
// that is left alone can go on for as long as the client likes.
func (h *Handler) endWhenWithdrawn(ctx context.Context, end func(), m *member, group string, replaced <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		}
		var roster *Roster
		if roster, replaced = h.members.Roster(); roster == nil || !roster.keeps(m, group) {
			klog.V(2).InfoS("Ended a watch on the member port, which the cluster may no longer have", "cluster", m.name, "group", group)
			end()
			return
		}
	}
}

// objects passes a request for objects on, by way of the guard against the
// controller that sent it, if it was one.
func (h *Handler) objects(w http.ResponseWriter, in *http.Request, who speaker, watched func(group string)) {
	info, err := h.parse.NewRequestInfo(in)
	if err != nil || !info.IsResourceRequest {
		refuse(w, status(http.StatusBadRequest, metav1.StatusReasonBadRequest, "this is no request for objects: "+in.URL.Path))
		return
	}
	if info.Verb == "watch" {
		watched(info.APIGroup)
	}
	switch recognise(who.name, in.UserAgent()) {
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

// inner is the request as the next handler gets it.
func (h *Handler) inner(r *http.Request, m *member, who speaker) *http.Request {
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

// notCacheControl leaves a header out, which the chain adds where it is not known
// yet. The member's API server has said it before it proxied, and clients would
// have it twice.
func notCacheControl(h http.Header) { h["Cache-Control"] = nil }

func clientCertificates(r *http.Request) []*x509.Certificate {
	if r.TLS == nil {
		return nil
	}
	return r.TLS.PeerCertificates
}
