package install

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"k8s.io/utils/clock"
)

// ClientConfig says how to speak with mirrors and registries.
type ClientConfig struct {
	// Roots are the authorities that servers' certificates are held against. Nil are
	// the system's.
	Roots *x509.CertPool
	// LoopbackHTTP lets http:// be, for servers on this machine, by loopback address or
	// as localhost. Everything else is https:// in any case.
	LoopbackHTTP bool
	// Attempts are how often something is tried that fails in passing; 5 if 0.
	Attempts int
	// Stall is how long a server may send nothing; a minute if 0.
	Stall time.Duration
	// Clock is for waiting. Nil is the real one.
	Clock clock.WithDelayedExecution
}

// Client speaks HTTP, over the proxies that the environment names. What fails in passing
// (broken connections, 429, 5xx) it tries again, later and later. It is safe for
// concurrent use.
type Client struct {
	http     *http.Client
	loopback bool
	attempts int
	stall    time.Duration
	clock    clock.WithDelayedExecution
}

const (
	// maxDocument bounds lists of versions, checksums, signatures: the largest that
	// there is has a megabyte.
	maxDocument  = 16 << 20
	maxRedirects = 10
	firstPause   = time.Second
	longestPause = 30 * time.Second
)

// NewClient makes a Client.
func NewClient(config ClientConfig) *Client {
	c := &Client{loopback: config.LoopbackHTTP, attempts: config.Attempts, stall: config.Stall, clock: config.Clock}
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
		Transport: discreet{&http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			TLSClientConfig:        &tls.Config{RootCAs: config.Roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    15 * time.Second,
			MaxIdleConnsPerHost:    4,
			IdleConnTimeout:        time.Minute,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // sizes and ranges are of what is stored
			MaxResponseHeaderBytes: 64 << 10,
		}},
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if len(before) >= maxRedirects {
				return permanent(fmt.Errorf("more than %d redirections", maxRedirects))
			}
			// It would tell the next server the address, in which a token may be.
			next.Header.Del("Referer")
			return c.checkURL(next.URL)
		},
	}
	return c
}

// Close closes connections that nobody uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// discreet refuses redirections to what is no address, before net/http does, whose error
// repeats them.
type discreet struct{ *http.Transport }

func (d discreet) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := d.Transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if _, bad := url.Parse(answer.Header.Get("Location")); bad != nil {
		_ = answer.Body.Close() // nobody reads it
		return nil, permanent(errors.New("the server redirects to what is no address"))
	}
	return answer, nil
}

// checkURL refuses addresses that are not encrypted, or none.
func (c *Client) checkURL(u *url.URL) error {
	switch {
	case u.Hostname() == "":
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && c.loopback && loopback(u.Hostname()):
		return nil
	}
	return permanent(fmt.Errorf("%w: address %s is not of the form https://HOST/…", ErrInvalid, mask(u)))
}

// mask gives an address without what may be a credential: who asks, and the values of
// the query. Its path stays, or nobody would know what is missing.
func mask(u *url.URL) string {
	m := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath, Opaque: u.Opaque}
	if m.Opaque != "" {
		m.Opaque = "…"
	}
	if u.RawQuery != "" {
		return short(m.String()) + "?…"
	}
	return short(m.String())
}

// permanentError is one that another try would not cure.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error { return permanentError{err} }

// lasting tells whether there is no use in trying again.
func lasting(ctx context.Context, err error) bool {
	var certificate *tls.CertificateVerificationError
	var known permanentError
	return ctx.Err() != nil || errors.As(err, &known) || errors.As(err, &certificate)
}

// statusError is an answer other than the one that was asked for.
type statusError struct {
	code  int
	after time.Duration // what Retry-After says
}

func (e statusError) Error() string {
	text := fmt.Sprintf("the server answers %d %s", e.code, http.StatusText(e.code))
	if e.code == http.StatusUnauthorized || e.code == http.StatusForbidden {
		text += "; credentials for it may be missing or wrong"
	}
	return text
}

func (e statusError) Is(target error) bool {
	return target == ErrNotFound && (e.code == http.StatusNotFound || e.code == http.StatusGone)
}

func statusOf(answer *http.Response) error {
	err := statusError{code: answer.StatusCode}
	if seconds, bad := strconv.Atoi(answer.Header.Get("Retry-After")); bad == nil && seconds > 0 {
		err.after = min(time.Duration(seconds)*time.Second, longestPause)
	}
	passing := err.code >= 500 && err.code != http.StatusNotImplemented || err.code == http.StatusTooManyRequests || err.code == http.StatusRequestTimeout
	if !passing {
		return permanent(err)
	}
	return err
}

// again calls try until it succeeds, fails for good, or has failed too often. Steps that got
// anywhere (a download that grew) start the count anew, within the context's time.
func (c *Client) again(ctx context.Context, u *url.URL, try func() (progress bool, err error)) error {
	for failed := 0; ; {
		progress, err := try()
		if err == nil {
			return nil
		}
		if progress {
			failed = 0
		}
		failed++
		err = unaddressed(err)
		if lasting(ctx, err) || failed >= c.attempts {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return fmt.Errorf("%s: %w", mask(u), err)
		}
		if waited := c.wait(ctx, pause(failed, err)); waited != nil {
			return fmt.Errorf("%s: %w", mask(u), waited)
		}
	}
}

// pause is how long to wait after so many failures: twice as long each time, and a part of it by
// chance, so that a fleet of servers does not come back as one.
func pause(failed int, err error) time.Duration {
	var status statusError
	if errors.As(err, &status) && status.after > 0 {
		return status.after
	}
	d := min(firstPause<<min(failed-1, 10), longestPause)
	return d/2 + rand.N(d/2)
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

// unaddressed takes the address out of an error of net/http, because it masks passwords
// only.
func unaddressed(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// get does one request. The caller reads the body and calls done.
func (c *Client) get(ctx context.Context, u *url.URL, header http.Header) (answer *http.Response, done func(), err error) {
	if err := c.checkURL(u); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, nil, permanent(fmt.Errorf("%w: address %s", ErrInvalid, mask(u)))
	}
	for key, values := range header {
		request.Header[key] = values
	}
	request.Header.Set("User-Agent", "atoll")
	watch := c.clock.AfterFunc(c.stall, func() { cancel(fmt.Errorf("the server has sent nothing for %s", c.stall)) })
	answer, err = c.http.Do(request)
	if err != nil {
		watch.Stop()
		err = stalled(ctx, err)
		cancel(nil)
		return nil, nil, err
	}
	answer.Body = &watched{body: answer.Body, ctx: ctx, alive: func() { watch.Reset(c.stall) }}
	return answer, func() {
		watch.Stop()
		_ = answer.Body.Close() // it was only read
		cancel(nil)
	}, nil
}

// watched is a body that fails with the reason for which its request was given up, and tells
// when something has come.
type watched struct {
	body  io.ReadCloser
	ctx   context.Context
	alive func()
}

func (w *watched) Read(into []byte) (int, error) {
	n, err := w.body.Read(into)
	if n > 0 {
		w.alive()
	}
	if err != nil && err != io.EOF {
		err = stalled(w.ctx, err)
	}
	return n, err
}

func (w *watched) Close() error { return w.body.Close() }

// stalled gives the reason for which a request was given up, if it was.
func stalled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// document reads a small file whole, and tells from where it came in the end.
func (c *Client) document(ctx context.Context, u *url.URL) (text []byte, kind string, from *url.URL, err error) {
	err = c.again(ctx, u, func() (bool, error) {
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
	// A portal that answers everything with a page to log in at is told from a mirror.
	if media, _, err := mime.ParseMediaType(kind); err != nil || media != "application/json" {
		return nil, fmt.Errorf("%s: the answer's Content-Type is %q, not application/json: it is no mirror or registry", mask(u), short(kind))
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, fmt.Errorf("%s: the answer cannot be read: %s", mask(u), short(err.Error()))
	}
	return from, nil
}
