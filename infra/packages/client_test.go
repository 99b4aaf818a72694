package packages

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// impatient is a clock on which pauses end at once. Timers that detect silence only fire when the
// test does it.
type impatient struct {
	*clocktesting.FakeClock
	stop chan struct{}
}

func newImpatient(t *testing.T) *impatient {
	c := &impatient{clocktesting.NewFakeClock(time.Now()), make(chan struct{})}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(time.Millisecond):
				if c.HasWaiters() {
					c.Step(time.Second)
				}
			}
		}
	})
	t.Cleanup(func() {
		close(c.stop)
		done.Wait()
	})
	return c
}

// client returns a client for a test's servers, with short timeouts.
func client(t *testing.T, server *httptest.Server) *Client {
	c := NewClient(ClientConfig{Roots: pool(server), Clock: newImpatient(t), Stall: 24 * time.Hour})
	t.Cleanup(c.Close)
	return c
}

func pool(server *httptest.Server) *x509.CertPool {
	if server == nil || server.Certificate() == nil {
		return nil
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots
}

// serve starts a server whose paths are answered by functions, and which records requests.
type serve struct {
	mu    sync.Mutex
	paths map[string]http.HandlerFunc
	asked []string
}

func (s *serve) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path+" "+r.Header.Get("Range"))
	answer := s.paths[r.URL.Path]
	s.mu.Unlock()
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	answer(w, r)
}

func (s *serve) set(path string, answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths[path] = answer
}

func (s *serve) requests() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.asked, "\n")
}

func startServer(t *testing.T) (*serve, *httptest.Server) {
	s := &serve{paths: map[string]http.HandlerFunc{}}
	server := httptest.NewTLSServer(s)
	server.Config.ErrorLog = nil
	t.Cleanup(server.Close)
	return s, server
}

// object answers with JSON, text with bytes.
func object(format string, args ...any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, format, args...)
	}
}

func text(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

// breaking sends some bytes and then breaks the connection.
func breaking(content []byte, after int, header map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for key, value := range header {
			w.Header().Set(key, value)
		}
		from := 0
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err == nil {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
		}
		rest := content[from:]
		w.Header().Set("Content-Length", fmt.Sprint(len(rest)))
		if from > 0 {
			w.WriteHeader(http.StatusPartialContent)
		}
		if len(rest) <= after {
			_, _ = w.Write(rest)
			return
		}
		_, _ = w.Write(rest[:after])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func fetched(t *testing.T, c *Client, address string, limits Limits) ([]byte, error) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := c.download(t.Context(), u, file, limits.withDefaults(), &meter{}); err != nil {
		return nil, err
	}
	got, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return got, nil
}

func someBytes(n int) []byte {
	content := make([]byte, n)
	for i := range content {
		content[i] = byte(i * i >> 3)
	}
	return content
}

// TestDownloadResumes: which interrupted downloads are resumed, and which restart.
func TestDownloadResumes(t *testing.T) {
	content := someBytes(100_000)
	tests := []struct {
		name   string
		header map[string]string
		resume bool
	}{
		{"by an ETag", map[string]string{"ETag": `"v1"`}, true},
		{"by a date", map[string]string{"Last-Modified": "Mon, 02 Jan 2006 15:04:05 GMT"}, true},
		{"not by a weak ETag", map[string]string{"ETag": `W/"v1"`}, false},
		{"not by nothing", nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, server := startServer(t)
			s.set("/a", func(w http.ResponseWriter, r *http.Request) {
				after := 40_000
				if strings.Count(s.requests(), "\n") >= 2 {
					after = len(content)
				}
				breaking(content, after, tt.header)(w, r)
			})
			got, err := fetched(t, client(t, server), server.URL+"/a", Limits{})
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if resumed := strings.Contains(s.requests(), "bytes="); resumed != tt.resume {
				t.Errorf("asked:\n%s", s.requests())
			}
		})
	}
}

// TestDownloadOfChangedFile: the file changes between the first part and the second.
func TestDownloadOfChangedFile(t *testing.T) {
	before, after := someBytes(50_000), bytes.Repeat([]byte("new"), 10_000)
	s, server := startServer(t)
	s.set("/a", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-Range") == "" {
			breaking(before, 20_000, map[string]string{"ETag": `"v1"`})(w, r)
			return
		}
		w.Header().Set("ETag", `"v2"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(after)) // the whole file, because If-Range does not match
	})
	got, err := fetched(t, client(t, server), server.URL+"/a", Limits{})
	if err != nil || !bytes.Equal(got, after) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

// TestRetries: which failures are retried.
func TestRetries(t *testing.T) {
	tests := []struct {
		name  string
		fails func(http.ResponseWriter, *http.Request)
		again bool
		says  string
	}{
		{"500", status(500), true, ""},
		{"503", status(503), true, ""},
		{"429 with Retry-After", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(429)
		}, true, ""},
		{"broken connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true, ""},
		{"another part", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 5-9/10")
			w.WriteHeader(http.StatusPartialContent)
		}, true, ""},
		{"no such range", status(416), true, ""},
		{"404", status(404), false, "404 Not Found"},
		{"403", status(403), false, "credentials"},
		{"400", status(400), false, "400 Bad Request"},
		{"501", status(501), false, "501"},
		{"nothing modified", status(304), false, "304"},
		{"redirection to http", redirect("http://example.com/a"), false, "does not have the form https://"},
		{"redirection to a file", redirect("file:///etc/passwd"), false, "does not have the form https://"},
		{"redirection to itself", redirect("/a"), false, "more than 10 redirections"},
		{"redirection to nowhere", redirect("https://user:hunter2@[bad"), false, "an invalid address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			content := someBytes(1000)
			s, server := startServer(t)
			s.set("/a", func(w http.ResponseWriter, r *http.Request) {
				if tt.again && strings.Contains(s.requests(), "\n") {
					text(content)(w, r)
					return
				}
				tt.fails(w, r)
			})
			got, err := fetched(t, client(t, server), server.URL+"/a", Limits{})
			if tt.again && (err != nil || !bytes.Equal(got, content)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if !tt.again && (err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "hunter2")) {
				t.Errorf("%v", err)
			}
		})
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	}
}

func TestGivesUp(t *testing.T) {
	s, server := startServer(t)
	s.set("/a", status(502))
	_, err := fetched(t, client(t, server), server.URL+"/a?token=hunter2", Limits{})
	if err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	if got := strings.Count(s.requests(), "/a"); got != 5 {
		t.Errorf("asked %d times", got)
	}
	s.set("/b", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	_, err = fetched(t, client(t, server), server.URL+"/b?token=hunter2", Limits{})
	if err == nil || !strings.Contains(err.Error(), "/b?…: EOF") || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// TestSilence: a request fails if the server sends nothing more.
func TestSilence(t *testing.T) {
	s, server := startServer(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.set("/headers", func(http.ResponseWriter, *http.Request) { <-over })
	s.set("/body", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "a beginning")
		_ = http.NewResponseController(w).Flush()
		<-over
	})
	c := NewClient(ClientConfig{Roots: pool(server), Clock: newImpatient(t), Stall: time.Minute, Attempts: 2})
	defer c.Close()
	for _, path := range []string{"/headers", "/body"} {
		_, err := fetched(t, c, server.URL+path, Limits{})
		if err == nil || !strings.Contains(err.Error(), "nothing for 1m0s") {
			t.Error(path, err)
		}
	}
}

func TestDownloadIsBounded(t *testing.T) {
	content := someBytes(5000)
	s, server := startServer(t)
	s.set("/said", text(content))
	s.set("/unsaid", func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		_, _ = w.Write(content)
	})
	for _, path := range []string{"/said", "/unsaid"} {
		_, err := fetched(t, client(t, server), server.URL+path, Limits{Archive: 4999})
		failsWith(t, err, ErrRefused, "limit of 4999 bytes")
		if got, err := fetched(t, client(t, server), server.URL+path, Limits{Archive: 5000}); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
	s.set("/document", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(bytes.Repeat([]byte(" "), maxDocument+1))
	})
	u, _ := url.Parse(server.URL + "/document")
	_, err := client(t, server).object(t.Context(), u, &struct{}{})
	failsWith(t, err, ErrRefused, "larger than")
}

// TestAddresses: which addresses are accepted, and that no error shows credentials.
func TestAddresses(t *testing.T) {
	tests := []struct {
		address  string
		loopback bool
		ok       bool
	}{
		{"https://example.com/", false, true},
		{"http://example.com/", false, false},
		{"http://example.com/", true, false},
		{"http://127.0.0.1:80/", false, false},
		{"http://127.0.0.1:80/", true, true},
		{"http://[::1]:80/", true, true},
		{"http://localhost/", true, true},
		{"http://localhost.example.com/", true, false},
		{"http://127.0.0.1.example.com/", true, false},
		{"http://10.0.0.1/", true, false},
		{"ftp://example.com/", true, false},
		{"https:///path", true, false},
		{"https:opaque", true, false},
		{"/path", true, false},
	}
	for _, tt := range tests {
		u, err := url.Parse(tt.address)
		if err != nil {
			t.Fatal(err)
		}
		err = NewClient(ClientConfig{LoopbackHTTP: tt.loopback}).checkURL(u)
		if (err == nil) != tt.ok {
			t.Errorf("%s, loopback %v: %v", tt.address, tt.loopback, err)
		}
	}
	for address, want := range map[string]string{
		"https://user:hunter2@example.com/a%2Fb?token=hunter2#hunter2": "https://example.com/a%2Fb?…",
		"https://hunter2@example.com":                                  "https://example.com",
		"https:hunter2":                                                "https:…",
	} {
		u, err := url.Parse(address)
		if err != nil || redactURL(u) != want {
			t.Errorf("%s is shown as %s, %v", address, redactURL(u), err)
		}
	}
}

// TestCertificates: a server with an untrusted certificate is asked only once.
func TestCertificates(t *testing.T) {
	s, server := startServer(t)
	s.set("/a", text(nil))
	c := NewClient(ClientConfig{Clock: hurried{clocktesting.NewFakeClock(time.Now()), t}, Roots: x509.NewCertPool()})
	defer c.Close()
	_, err := fetched(t, c, server.URL+"/a", Limits{})
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Error(err)
	}
	if s.requests() != "" {
		t.Error("it was asked", s.requests())
	}
}

// hurried is a clock on which pauses are an error.
type hurried struct {
	*clocktesting.FakeClock
	t *testing.T
}

func (h hurried) NewTimer(time.Duration) clock.Timer {
	h.t.Error("it is tried again")
	return clock.RealClock{}.NewTimer(0)
}

// TestCancelled: a cancelled call returns the cause soon.
func TestCancelled(t *testing.T) {
	archive := pack(t, files()...)
	s, server := startServer(t)
	asked, over := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.set("/archive", func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-over
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	go func() {
		<-asked
		cancel(enough)
	}()
	dir := storeDir(t)
	u, _ := url.Parse(server.URL + "/archive")
	_, err := New(openStore(t, dir), client(t, server), Limits{}).Install(ctx, request(at{u}, zh(archive)))
	failsWith(t, err, enough, demo.String())
	if left := tree(t, dir); left != emptyStore {
		t.Errorf("left behind:\n%s", left)
	}
}

// TestInstallTimeout: the duration of an installation is bounded.
func TestInstallTimeout(t *testing.T) {
	s, server := startServer(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	s.set("/archive", func(http.ResponseWriter, *http.Request) { <-over })
	u, _ := url.Parse(server.URL + "/archive")
	_, err := New(openStore(t, storeDir(t)), client(t, server), Limits{Time: 10 * time.Millisecond}).Install(t.Context(), request(at{u}, zh(nil)))
	if err == nil || !strings.Contains(err.Error(), "longer than 10ms") {
		t.Error(err)
	}
}

// at is an origin with everything at one address.
type at struct{ url *url.URL }

func (a at) Versions(context.Context, Address) ([]Version, error) { return nil, nil }
func (a at) Find(context.Context, Package) (Found, error)         { return Found{URL: a.url}, nil }
func (a at) String() string                                       { return "an address" }

// TestRefererIsNotSent: a token in an address is not sent to another server.
func TestRefererIsNotSent(t *testing.T) {
	s, server := startServer(t)
	s.set("/a", redirect("/b"))
	s.set("/b", func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header["Referer"]) > 0 {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	if _, err := fetched(t, client(t, server), server.URL+"/a?token=hunter2", Limits{}); err != nil {
		t.Error(err)
	}
}

// TestProxy: the environment's proxy is used, and its password is not shown. The test runs in
// another process, because a process reads the environment only once.
func TestProxy(t *testing.T) {
	if address := os.Getenv("ATOLL_TEST_PROXIED"); address != "" {
		c := NewClient(ClientConfig{Attempts: 1})
		_, err := fetched(t, c, address, Limits{})
		fmt.Println("error:", err)
		return
	}
	connected := make(chan string, 10)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxy := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connected <- r.Method + " " + r.Host
		w.WriteHeader(http.StatusForbidden)
	})}
	go func() { _ = proxy.Serve(listener) }()
	defer func() { _ = proxy.Close() }()
	out := runTest(t, "TestProxy", "ATOLL_TEST_PROXIED=https://tf.example.com/a", "HTTPS_PROXY=http://user:hunter2@"+listener.Addr().String())
	if !strings.Contains(out, "error: https://tf.example.com/a: ") || strings.Contains(out, "hunter2") {
		t.Error(out)
	}
	if got := <-connected; got != "CONNECT tf.example.com:443" {
		t.Error("the proxy was asked to", got)
	}
}

// TestErrorsAreTruncated: external text is truncated in errors.
func TestErrorsAreTruncated(t *testing.T) {
	long := strings.Repeat("ü", 10_000)
	s, server := startServer(t)
	s.set("/.well-known/terraform.json", object(`{"providers.v1": "/v1/providers/"}`))
	source := demo.Source
	source.Host = strings.TrimPrefix(server.URL, "https://")
	for _, answer := range []http.HandlerFunc{
		object(`{"os": %q}`, long), object(`{"os": "linux", "arch": "amd64", "protocols": [%q]}`, long),
		object(`{"os": "linux", "arch": "amd64", "shasum": "%064d", "download_url": "ftp://%s"}`, 0, long),
		object(`{"os": "linux", "arch": "amd64", "shasum": "%064d", "download_url": "/x", "signing_keys": {"gpg_public_keys": [{"ascii_armor": %q}]}}`, 0,
			"-----BEGIN "+long+"-----\n\nAAAA\n-----END "+long+"-----"),
		object(`{"protocols": %s}`, strings.Repeat("1", 10_000)),
	} {
		s.set("/v1/providers/acme/demo/1.2.3/download/linux/amd64", answer)
		_, err := NewRegistry(client(t, server)).Find(t.Context(), Package{source, demo.Version, demo.Platform})
		if err == nil || len(err.Error()) > 1000 || !utf8.ValidString(err.Error()) {
			t.Errorf("%d characters: %.200v", len(fmt.Sprint(err)), err)
		}
	}
}
