package packages

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	// Roots are the trusted certificate authorities. Nil means the system's.
	Roots *x509.CertPool
	// LoopbackHTTP allows http:// for servers on this machine, by loopback address or as localhost.
	// All other addresses must be https://.
	LoopbackHTTP bool
	// Attempts is the number of attempts for operations that fail temporarily. Default: 5.
	Attempts int
	// Stall is the time without data after which a request fails. Default: 1 minute.
	Stall time.Duration
	// Clock is used for waiting. Nil means the real clock.
	Clock clock.WithDelayedExecution
}

// Client is an HTTP client that uses the proxies of the environment. It retries temporary failures
// (broken connections, 429, 5xx) with growing back-off. It is safe for concurrent use.
type Client struct {
	http          *http.Client
	allowLoopback bool
	attempts      int
	stall         time.Duration
	clock         clock.WithDelayedExecution
}

const (
	// maxDocument bounds lists of versions, checksums and signatures. The largest known one has a
	// megabyte.
	maxDocument  = 16 << 20
	maxRedirects = 10
	minBackoff   = time.Second
	maxBackoff   = 30 * time.Second
)

// NewClient creates a Client.
func NewClient(config ClientConfig) *Client {
	c := &Client{allowLoopback: config.LoopbackHTTP, attempts: config.Attempts, stall: config.Stall, clock: config.Clock}
	if c.attempts == 0 {
		c.attempts = 5
	}
	if c.stall == 0 {
		c.stall = time.Minute
	}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	c.http = &http.Client{
		Transport: redirectChecker{&http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: config.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    15 * time.Second,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        time.Minute,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // sizes and ranges refer to the stored file
			MaxResponseHeaderBytes: 64 << 10,
		}},
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if len(before) >= maxRedirects {
				return permanent(fmt.Errorf("more than %d redirections", maxRedirects))
			}
			// It would send the address, which may contain a token, to the next server.
			next.Header.Del("Referer")
			return c.checkURL(next.URL)
		},
	}
	return c
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// redirectChecker rejects redirects to invalid addresses before net/http does, whose error contains
// the address.
type redirectChecker struct{ *http.Transport }

func (d redirectChecker) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := d.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if _, bad := url.Parse(answer.Header.Get("Location")); bad != nil {
		_ = answer.Body.Close() // it is not read
		return nil, permanent(errors.New("the server redirects to an invalid address"))
	}
	return answer, nil
}

// checkURL rejects addresses without TLS and incomplete ones.
func (c *Client) checkURL(u *url.URL) error {
	switch {
	case u.Hostname() == "":
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && c.allowLoopback && isLoopback(u.Hostname()):
		return nil
	}
	return permanent(fmt.Errorf("%w: address %s does not have the form https://HOST/…", ErrInvalid, redactURL(u)))
}

// redactURL formats an address without possible credentials: user information and the values of the
// query. The path remains, so that an error shows the missing file.
func redactURL(u *url.URL) string {
	m := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath, Opaque: u.Opaque}
	if m.Opaque != "" {
		m.Opaque = "…"
	}
	if u.RawQuery != "" {
		return truncate(m.String()) + "?…"
	}
	return truncate(m.String())
}

// permanentError is an error that a retry would not fix.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

// isPermanent reports whether a retry is pointless.
func isPermanent(ctx context.Context, err error) bool {
	var certificate *tls.CertificateVerificationError
	var known permanentError
	return ctx.Err() != nil || errors.As(err, &known) || errors.As(err, &certificate)
}

// statusError reports an unexpected HTTP status.
type statusError struct {
	code  int
	after time.Duration // from Retry-After
}

func (e statusError) Error() string {
	text := fmt.Sprintf("the server answered %d %s", e.code, http.StatusText(e.code))
	if e.code == http.StatusUnauthorized || e.code == http.StatusForbidden {
		text += "; check the credentials"
	}
	return text
}

func (e statusError) Is(target error) bool {
	return target == ErrNotFound && (e.code == http.StatusNotFound || e.code == http.StatusGone)
}

func statusOf(answer *http.Response) error {
	err := statusError{code: answer.StatusCode}
	if seconds, bad := strconv.Atoi(answer.Header.Get("Retry-After")); bad == nil && seconds > 0 {
		err.after = min(time.Duration(seconds)*time.Second, maxBackoff)
	}
	passing := err.code >= 500 && err.code != http.StatusNotImplemented || err.code == http.StatusTooManyRequests || err.code == http.StatusRequestTimeout
	if !passing {
		return permanent(err)
	}
	return err
}

// retry calls try until it succeeds, fails permanently, or has failed too often. Progress (a
// download that grew) resets the count, within the context's deadline.
func (c *Client) retry(ctx context.Context, u *url.URL, try func() (progress bool, err error)) error {
	pause := newBackoff()
	for failed := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if progress {
			failed, pause = 0, newBackoff()
		}
		failed++
		err = withoutURL(err)
		if isPermanent(ctx, err) || failed >= c.attempts {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("%s: %w", redactURL(u), err)
		}
		d := pause.Step()
		if asked := retryAfter(err); asked > 0 {
			d = asked
		}
		if waited := c.wait(ctx, d); waited != nil {
			return fmt.Errorf("%s: %w", redactURL(u), waited)
		}
	}
}

// newBackoff returns the pauses after failures. They double each time and are partly random, so that
// a fleet of servers does not retry in step.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff / 2, Factor: 2, Jitter: 1, Steps: 10, Cap: maxBackoff / 2}
}

// retryAfter returns the pause that a server asks for, or 0.
func retryAfter(err error) time.Duration {
	var status statusError
	if errors.As(err, &status) {
		return status.after
	}
	return 0
}

func (c *Client) wait(ctx context.Context, d time.Duration) error {
	timer := c.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C():
		return nil
	}
}

// withoutURL removes the address from an error of net/http, which masks only passwords.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// get makes one request. The caller reads the body and calls done.
func (c *Client) get(ctx context.Context, u *url.URL, header http.Header) (answer *http.Response, done func(), err error) {
	if err := c.checkURL(u); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, nil, permanent(fmt.Errorf("%w: address %s", ErrInvalid, redactURL(u)))
	}
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set("User-Agent", "atoll")
	watch := c.clock.AfterFunc(c.stall, func() { cancel(fmt.Errorf("the server sent nothing for %s", c.stall)) })
	answer, err = c.http.Do(request)
	if err != nil {
		watch.Stop()
		err = cancelCause(ctx, err)
		cancel(nil)
		return nil, nil, err
	}
	answer.Body = &stallReader{body: answer.Body, ctx: ctx, alive: func() { watch.Reset(c.stall) }}
	return answer, func() {
		watch.Stop()
		_ = answer.Body.Close() // read only
		cancel(nil)
	}, nil
}

// stallReader is a response body that fails with the cause of a cancelled request, and reports
// received data.
type stallReader struct {
	body  io.ReadCloser
	ctx   context.Context
	alive func()
}

func (w *stallReader) Read(into []byte) (int, error) {
	n, err := w.body.Read(into)
	if n > 0 {
		w.alive()
	}
	if err != nil && err != io.EOF {
		err = cancelCause(w.ctx, err)
	}
	return n, err
}

func (w *stallReader) Close() error { return w.body.Close() }

// cancelCause returns the cause if the request was cancelled, and else err.
func cancelCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// document reads a small file, and returns the address that it came from after redirects.
func (c *Client) document(ctx context.Context, u *url.URL) (text []byte, kind string, from *url.URL, err error) {
	err = c.retry(ctx, u, func() (bool, error) {
		answer, done, err := c.get(ctx, u, nil)
		if err != nil {
			return false, err
		}
		defer done()
		if answer.StatusCode != http.StatusOK {
			return false, statusOf(answer)
		}
		if text, err = io.ReadAll(io.LimitReader(answer.Body, maxDocument+1)); err != nil {
			return false, err
		}
		if len(text) > maxDocument {
			return false, permanent(fmt.Errorf("%w: the document is larger than %d bytes", ErrRefused, maxDocument))
		}
		kind, from = answer.Header.Get("Content-Type"), answer.Request.URL
		return false, nil
	})
	return text, kind, from, err
}

// object reads a JSON document.
func (c *Client) object(ctx context.Context, u *url.URL, into any) (from *url.URL, err error) {
	text, kind, from, err := c.document(ctx, u)
	if err != nil {
		return nil, err
	}
	// Detects a captive portal, which answers every request with a login page.
	if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
		return nil, fmt.Errorf("%s: the Content-Type is %q instead of application/json; check that this is the address of a mirror or registry", redactURL(u), truncate(kind))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, fmt.Errorf("%s: invalid JSON: %s", redactURL(u), truncate(err.Error()))
	}
	return from, nil
}
