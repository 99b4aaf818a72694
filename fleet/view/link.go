package view

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet"
)

// askPatience is how long a request may take that is no watch.
const askPatience = 30 * time.Second

// link is the connection to the servers of a view.
type link struct {
	cluster string
	base    string // URL of the view
	log     *slog.Logger
	clock   clock.WithTicker
	keep    func(ctx context.Context, kubeconfig []byte) error

	unkept []byte // a renewed kubeconfig; of keepFresh alone

	mu     sync.Mutex
	config *clientcmdapi.Config
	now    wire
}

// wire is what requests go over as long as a certificate lasts.
type wire struct {
	client *http.Client
	until  time.Time // the certificate expires
	since  time.Time
	ctx    context.Context // ends when another certificate takes its place
	end    context.CancelFunc
}

func newLink(cfg RemoteConfig) (*link, error) {
	config, err := clientcmd.Load(cfg.Kubeconfig)
	if err != nil {
		// The parser's own words may quote the file, which holds a key.
		return nil, errors.New("the kubeconfig of the view is not readable as one: get another with `atoll join NAME --mode pull`")
	}
	way, err := fleet.MemberConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig of the view cannot be used: %w", err)
	}
	base, err := url.Parse(way.Host)
	if err != nil || base.Scheme != "https" {
		return nil, errors.New("the kubeconfig of the view has a server that is no https URL: get another with `atoll join NAME --mode pull`")
	}
	at := strings.LastIndex(base.Path, v1alpha1.ViewsPath)
	if at < 0 {
		return nil, fmt.Errorf("the kubeconfig leads to %s, which is no view: a view's URL ends in %sCLUSTER", way.Host, v1alpha1.ViewsPath)
	}
	cluster, rest, ok := v1alpha1.ViewOf(strings.TrimSuffix(base.Path[at:], "/"))
	if !ok || rest != "/" {
		return nil, fmt.Errorf("the kubeconfig leads to %s, which is no view: a view's URL ends in %sCLUSTER", way.Host, v1alpha1.ViewsPath)
	}
	l := &link{cluster: cluster, base: strings.TrimSuffix(base.String(), "/"), log: cfg.Log, clock: cfg.Clock, keep: cfg.Keep, config: config}
	if l.now, err = l.connect(way); err != nil {
		return nil, err
	}
	return l, nil
}

// connect prepares what requests go over; it connects to nobody yet.
func (l *link) connect(way *rest.Config) (wire, error) {
	trust, err := rest.TLSConfigFor(way)
	if err != nil {
		return wire{}, fmt.Errorf("the kubeconfig of the view cannot be used: %w", err)
	}
	pair, err := tls.X509KeyPair(way.CertData, way.KeyData)
	if err != nil {
		return wire{}, errors.New("the kubeconfig of the view has no client certificate with its key: get another with `atoll join NAME --mode pull`")
	}
	trust.Certificates = []tls.Certificate{pair}
	trust.GetClientCertificate = nil
	w := wire{until: pair.Leaf.NotAfter, since: pair.Leaf.NotBefore}
	proxy := way.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	w.client = &http.Client{Transport: &http.Transport{TLSClientConfig: trust, Proxy: proxy, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: askPatience, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}},
		// What leads elsewhere leads away from the view.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w, nil
}

func (l *link) wire() wire {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// do sends a request and reads the answer into out, if it is not nil. An answer that
// says no is an *apierrors.StatusError.
func (l *link) do(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	answer, err := l.send(ctx, l.wire().client, method, l.base+path, content)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, answer.Body) // so that the connection can be used again
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fmt.Errorf("read the answer of %s: %w", l.base, err)
	}
	return nil
}

// watch opens a watch. ended is done when it should be opened anew.
func (l *link) watch(ctx context.Context, path string, query url.Values) (body io.ReadCloser, ended context.Context, err error) {
	w := l.wire()
	answer, err := l.send(ctx, w.client, http.MethodGet, l.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, nil, err
	}
	return answer.Body, w.ctx, nil
}

func (l *link) send(ctx context.Context, client *http.Client, method, url string, content io.Reader) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", v1alpha1.SyncerFieldManager)
	if content != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return nil, readRefusal(answer.StatusCode, said)
}

// readRefusal gives an answer that says no. One that a view did not write, such as
// that of something on the way, has no reason: in particular, it is no "not found".
func readRefusal(code int, said []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(said, &status); err == nil && status.Kind == "Status" && status.Reason != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return fmt.Errorf("the server answers %d %s, which is no answer of a view: check the server in the kubeconfig", code, http.StatusText(code))
}
