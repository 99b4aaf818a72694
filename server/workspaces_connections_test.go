package server_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// connection is one TLS connection with HTTP/2, for requests to all workspaces of a server.
type connection struct {
	*http.Client
	host  string
	dials atomic.Int64
}

// connect opens a connection with the client certificate of a configuration, or with a token in each request.
func connect(t *testing.T, config *rest.Config, token string) *connection {
	t.Helper()
	encryption, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	encryption.MinVersion = tls.VersionTLS13
	c := &connection{host: config.Host}
	transport := &http.Transport{TLSClientConfig: encryption, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c.dials.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c.Client = &http.Client{Transport: transport}
	header := http.Header{}
	if token != "" {
		header = bearer(token)
	}
	if code, _, err := c.who(t.Context(), "", header); err != nil || code != http.StatusCreated { // further requests find it open
		t.Fatalf("%d, %v", code, err)
	}
	return c
}

// do makes a request, and returns the status and the body of the answer.
func (c *connection) do(ctx context.Context, method, path, body string, header http.Header) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.host+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 2 {
		return 0, nil, fmt.Errorf("the answer is by %s", resp.Proto)
	}
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, data, err
}

// who returns the user of a request with these headers.
func (c *connection) who(ctx context.Context, path string, header http.Header) (int, authenticationv1.UserInfo, error) {
	code, body, err := c.do(ctx, "POST", path+"/apis/authentication.k8s.io/v1/selfsubjectreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, header)
	var review authenticationv1.SelfSubjectReview
	if err == nil && code == http.StatusCreated {
		err = json.Unmarshal(body, &review)
	}
	return code, review.Status.UserInfo, err
}

// sharer is a workspace whose requests share connections with those of others. All have a namespace, an account and an object of the
// same names.
type sharer struct {
	path   string // "" is the root
	config *rest.Config
	// uid is that of the account, and token its token.
	uid, token string
}

const sharedNamespace = "connections"

func (a atoll) newSharer(t *testing.T, path string, config *rest.Config) sharer {
	t.Helper()
	core := clientOf(t, config).CoreV1()
	_, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: sharedNamespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = core.Namespaces().Delete(context.Background(), sharedNamespace, metav1.DeleteOptions{}) })
	robot, err := core.ServiceAccounts(sharedNamespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = core.ConfigMaps(sharedNamespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "mark"}, Data: map[string]string{"of": path}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	issued, err := core.ServiceAccounts(sharedNamespace).CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return sharer{path, config, string(robot.UID), issued.Status.Token}
}

func bearer(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token}}
}

const (
	// sharedFor is how long requests share a connection, and sharedBy how many are under way at once.
	sharedFor = 4 * time.Second
	sharedBy  = 24
)

// TestWorkspaceConnections: requests to workspaces, to one in another and to the root share TLS connections, in parallel, with other tokens and
// impersonation in each stream. Each answer is that of the request's own workspace and user, and a watch has the events of its own.
func TestWorkspaceConnections(t *testing.T) {
	s := theServer(t)
	all := []sharer{s.newSharer(t, "", s.config(t))}
	for _, name := range []string{"conn-a", "conn-b"} {
		all = append(all, s.newSharer(t, "/clusters/"+name, s.createWorkspace(t, name)))
	}
	all = append(all, s.newSharer(t, "/clusters/conn-a:inner", s.createNested(t, "conn-a", "inner")))
	anonymous := rest.AnonymousClientConfig(s.config(t))
	to := connections{certified: connect(t, s.config(t), ""), tokens: connect(t, anonymous, all[0].token), mixed: connect(t, anonymous, all[0].token)}

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var events, requests atomic.Int64
	var watches, senders sync.WaitGroup
	watching, stopWatches := context.WithCancel(ctx)
	defer stopWatches()
	for _, w := range all {
		watches.Go(func() { w.watch(t, watching, to.certified, &events) })
	}
	deadline := time.Now().Add(sharedFor)
	for i := range sharedBy {
		random := rand.New(rand.NewPCG(1, uint64(i)))
		senders.Go(func() {
			for n := 0; time.Now().Before(deadline); n++ {
				w, other := all[random.IntN(len(all))], all[random.IntN(len(all))]
				if err := w.ask(ctx, to, other, random.IntN(7), fmt.Sprintf("u%d-%d", i, n)); err != nil {
					t.Error(err)
					return
				}
				requests.Add(1)
			}
		})
	}
	senders.Wait()
	stopWatches()
	watches.Wait()
	t.Logf("%d requests, %d events", requests.Load(), events.Load())
	if events.Load() == 0 || to.certified.dials.Load() != 1 || to.tokens.dials.Load() != 1 {
		t.Errorf("%d events; %d and %d connections, want one each", events.Load(), to.certified.dials.Load(), to.tokens.dials.Load())
	}
}

// connections have a client certificate, or tokens that are valid, or also tokens of other workspaces. After a wrong token, the server
// tells the client to open another connection for further requests.
type connections struct{ certified, tokens, mixed *connection }

// ask makes one of the requests whose answers tell workspaces or users apart. other is any of the workspaces, unique a new name.
func (w sharer) ask(ctx context.Context, by connections, other sharer, kind int, unique string) error {
	maps := w.path + "/api/v1/namespaces/" + sharedNamespace + "/configmaps"
	wrong := func(code int, got any, err error) error {
		return fmt.Errorf("request %d to %q with the credentials of %q: %d %v, %w", kind, w.path, other.path, code, got, err)
	}
	switch kind {
	case 0:
		code, body, err := by.certified.do(ctx, "GET", maps+"/mark", "", nil)
		var found corev1.ConfigMap
		if err == nil {
			err = json.Unmarshal(body, &found)
		}
		if err != nil || code != http.StatusOK || found.Data["of"] != w.path {
			return wrong(code, string(body), err)
		}
	case 1: // for the watches
		code, body, err := by.certified.do(ctx, "POST", maps, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"of":%q}}`, unique, w.path), nil)
		if err != nil || code != http.StatusCreated {
			return wrong(code, string(body), err)
		}
	case 2: // this stream alone impersonates
		code, user, err := by.certified.who(ctx, w.path, http.Header{"Impersonate-User": {unique}, "Impersonate-Group": {"system:authenticated"}})
		if err != nil || code != http.StatusCreated || user.Username != unique {
			return wrong(code, user, err)
		}
	case 3:
		code, user, err := by.certified.who(ctx, w.path, nil)
		if err != nil || code != http.StatusCreated || user.Username != "atoll-admin" {
			return wrong(code, user, err)
		}
	case 4: // the account has the same name everywhere, and a UID of its own
		code, user, err := by.tokens.who(ctx, w.path, bearer(w.token))
		if err != nil || code != http.StatusCreated || user.UID != w.uid {
			return wrong(code, user, err)
		}
	case 5:
		code, user, err := by.mixed.who(ctx, w.path, bearer(other.token))
		own := w.path == other.path
		if err != nil || own && (code != http.StatusCreated || user.UID != w.uid) || !own && code != http.StatusUnauthorized {
			return wrong(code, user, err)
		}
	case 6: // the account may not impersonate, although the administrator does so at the same time
		header := bearer(w.token)
		header.Set("Impersonate-User", "atoll-admin")
		header.Set("Impersonate-Group", "system:masters")
		code, user, err := by.tokens.who(ctx, w.path, header)
		if err != nil || code != http.StatusForbidden {
			return wrong(code, user, err)
		}
	}
	return nil
}

// watch reads the events of the workspace until ctx ends.
func (w sharer) watch(t *testing.T, ctx context.Context, by *connection, events *atomic.Int64) {
	r, err := http.NewRequestWithContext(ctx, "GET", by.host+w.path+"/api/v1/namespaces/"+sharedNamespace+"/configmaps?watch=true", nil)
	if err != nil {
		t.Error(err)
		return
	}
	resp, err := by.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	for decoder := json.NewDecoder(resp.Body); ; {
		var event struct {
			Type   string
			Object corev1.ConfigMap
		}
		if err := decoder.Decode(&event); err != nil {
			if ctx.Err() == nil {
				t.Errorf("the watch of %q: %v", w.path, err)
			}
			return
		}
		if of, ok := event.Object.Data["of"]; event.Object.Name != "kube-root-ca.crt" && (!ok || of != w.path) {
			t.Errorf("the watch of %q has %+v", w.path, event)
			return
		}
		events.Add(1)
	}
}
