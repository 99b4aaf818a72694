package fleet

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// MemberProxy passes HTTP requests on to the API server of a cluster, with the credentials of its client configuration and
// without those of the client. Answers are passed on as they come: none of them is held in memory.
type MemberProxy struct {
	base      *url.URL
	transport http.RoundTripper
	upgrade   proxy.UpgradeRequestRoundTripper
}

// NewMemberProxy returns a MemberProxy to the cluster of a client configuration.
func NewMemberProxy(config *rest.Config) (*MemberProxy, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	to, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	upgrade, err := upgradeTransport(config)
	if err != nil {
		return nil, err
	}
	return &MemberProxy{base, to, upgrade}, nil
}

// upgradeTransport returns the transport of connections that change their protocol. They are opened with HTTP/1.1.
func upgradeTransport(config *rest.Config) (proxy.UpgradeRequestRoundTripper, error) {
	cfg, err := config.TransportConfig()
	if err != nil {
		return nil, err
	}
	tls, err := transport.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	dial := &http.Transport{TLSClientConfig: tls, DialContext: config.Dial, Proxy: config.Proxy}
	wrapped, err := transport.HTTPWrappersForConfig(cfg, proxy.MirrorRequest)
	if err != nil {
		return nil, err
	}
	return proxy.NewUpgradeRequestRoundTripper(dial, wrapped), nil
}

// Through returns a MemberProxy whose requests, except those that change their protocol, pass through a transport.
func (p *MemberProxy) Through(wrap func(http.RoundTripper) http.RoundTripper) *MemberProxy {
	out := *p
	out.transport = wrap(p.transport)
	return &out
}

// Handler returns a handler that passes a request on to a path of the API server.
func (p *MemberProxy) Handler(path string, failed proxy.ErrorResponder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		location := *p.base
		location.Path, location.RawQuery = strings.TrimSuffix(p.base.Path, "/")+path, r.URL.RawQuery
		r = r.Clone(r.Context())
		StripIdentity(r.Header)
		h := proxy.NewUpgradeAwareHandler(&location, p.transport, false, false, failed)
		h.UpgradeTransport = p.upgrade
		h.UseLocationHost = true
		h.RejectForwardingRedirects = true
		h.ServeHTTP(w, r)
	})
}

// StripIdentity removes what a client says about who it is, before its request is passed on as another user.
func StripIdentity(h http.Header) {
	for name := range h {
		lower := strings.ToLower(name)
		if lower == "authorization" || lower == "cookie" || strings.HasPrefix(lower, "impersonate-") || strings.HasPrefix(lower, "x-remote-") {
			delete(h, name)
		}
	}
	stripToken(h)
}

// stripToken removes the token that a browser offers as a protocol of a WebSocket. The others are those that it speaks.
func stripToken(h http.Header) {
	const header, token = "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io."
	offered := strings.Split(strings.Join(h.Values(header), ","), ",")
	spoken := slices.DeleteFunc(slices.Clone(offered), func(p string) bool { return strings.HasPrefix(strings.TrimSpace(p), token) })
	if len(spoken) == len(offered) {
		return
	}
	h.Del(header)
	if len(spoken) > 0 {
		h.Set(header, strings.Join(spoken, ","))
	}
}
