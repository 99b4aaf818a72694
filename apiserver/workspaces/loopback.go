package workspaces

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clientrest "k8s.io/client-go/rest"
)

// loopback is the transport of a client of one workspace in this process: it calls the chain, without a connection. Its requests are
// those of the server itself.
type loopback struct {
	chain     *chain
	workspace *Workspace
	// path is that of the workspace, for the audit log; "" if it is not known.
	path string
	// controllers is set if the client is that of the controllers: their own requests leave nothing for them.
	controllers bool
	// as is the user of the requests if they are not those of the server itself: see ClientConfigAs.
	as user.Info
}

// ServerUser is the name of the user of the server's own requests.
const ServerUser = user.APIServerUser

// serverIdentity is the user of the server's own requests.
var serverIdentity = &user.DefaultInfo{Name: ServerUser, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}

// serversKey is in the context of requests that come from a client of this process. Users cannot set it, whatever their name is.
type serversKey struct{}

// isServers reports whether a request is one of the server itself.
func isServers(ctx context.Context) bool { return ctx.Value(serversKey{}) != nil }

// claimsToBeServer reports whether a client impersonates the server. It may not, also if RBAC of a workspace permits it to impersonate
// everyone: the server's requests are exempt from limits, and remove finalizers.
func claimsToBeServer(r *http.Request) bool {
	return r.Header.Get(authenticationv1.ImpersonateUserHeader) == ServerUser
}

// clientConfig returns the configuration of a client of a workspace, as the server itself.
func (c *chain) clientConfig(w *Workspace) *clientrest.Config {
	return &clientrest.Config{Host: "https://workspace.atoll.internal", Transport: loopback{chain: c, workspace: w}, QPS: -1, DisableCompression: true,
		ContentConfig: clientrest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"}}
}

// RoundTrip implements http.RoundTripper. The body of the response is written while it is read.
func (l loopback) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(l.contextOf(r))
	if l.controllers {
		ctx = withoutDue(ctx)
	}
	in := r.Clone(ctx)
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), "127.0.0.1:0"
	in.Proto, in.ProtoMajor, in.ProtoMinor = "HTTP/2.0", 2, 0
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, out := io.Pipe()
	w := &pipeResponse{header: http.Header{}, out: out, begun: make(chan struct{}), closed: make(chan bool)}
	go func() {
		defer cancel()
		defer in.Body.Close()
		defer func() {
			if reason := recover(); reason != nil { // as net/http does: the client gets an error
				w.WriteHeader(http.StatusInternalServerError)
				_ = out.CloseWithError(fmt.Errorf("the handler panicked: %v", reason))
			}
		}()
		l.chain.handler.ServeHTTP(w, in)
		w.WriteHeader(http.StatusOK)
		_ = out.Close()
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
		cancel()
		_ = body.CloseWithError(r.Context().Err())
		return nil, r.Context().Err()
	}
	return &http.Response{Status: http.StatusText(w.code), StatusCode: w.code, Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.sent,
		Body: endedBody{body, cancel}, ContentLength: -1, Request: r}, nil
}

// endedBody ends the handler when the client closes the response.
type endedBody struct {
	*io.PipeReader
	cancel func()
}

func (b endedBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipeResponse is the response that a handler writes.
type pipeResponse struct {
	header http.Header
	out    *io.PipeWriter

	once  sync.Once
	code  int
	sent  http.Header // a copy: handlers may change theirs later
	begun chan struct{}
	// closed is for CloseNotify.
	closed chan bool
}

func (w *pipeResponse) Header() http.Header { return w.header }

func (w *pipeResponse) WriteHeader(code int) {
	if code < http.StatusOK {
		return // informational
	}
	w.once.Do(func() {
		w.code, w.sent = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *pipeResponse) Write(data []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.out.Write(data)
}

// Flush implements http.Flusher: nothing is buffered.
func (w *pipeResponse) Flush() { w.WriteHeader(http.StatusOK) }

// CloseNotify implements http.CloseNotifier. Upstream wraps a response that lacks it without Flush, which a watch needs.
// It sends nothing: the context of a request ends with its client.
func (w *pipeResponse) CloseNotify() <-chan bool { return w.closed }
