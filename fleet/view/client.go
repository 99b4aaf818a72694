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

// requestTimeout bounds each request that is not a watch.
const requestTimeout = 30 * time.Second

// client is the connection to the servers of a view.
type client struct {
	cluster string
	base    string // URL of the view
	log     *slog.Logger
	clock   clock.WithTicker
	save    func(ctx context.Context, kubeconfig []byte) error

	unsaved []byte // a renewed kubeconfig that is not saved yet; used by renewPeriodically only

	mu        sync.Mutex
	config    *clientcmdapi.Config
	transport transport
}

// transport is used for requests as long as its certificate is valid.
type transport struct {
	client    *http.Client
	tls       *tls.Config
	proxy     func(*http.Request) (*url.URL, error)
	notAfter  time.Time // expiry of the certificate
	notBefore time.Time
	ctx       context.Context // ends when the certificate is replaced
	end       context.CancelFunc
}

func newClient(cfg RemoteConfig) (*client, error) {
	config, err := clientcmd.Load(cfg.Kubeconfig)
	if err != nil {
		return nil, errInvalidKubeconfig
	}
	way, err := fleet.MemberConfig(cfg.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("invalid kubeconfig of the view: %w", err)
	}
	address, err := parseAddress(way.Host)
	if err != nil {
		return nil, err
	}
	l := &client{cluster: address.cluster, base: address.view, log: cfg.Log, clock: cfg.Clock, save: cfg.Save, config: config}
	if l.transport, err = l.newTransport(way); err != nil {
		return nil, err
	}
	return l, nil
}

// errInvalidKubeconfig does not quote the file, which contains a key.
var errInvalidKubeconfig = errors.New("the kubeconfig of the view is invalid: get another one with `atoll join NAME --mode pull`")

// address is the URL of a view.
type address struct {
	view, server string // the URLs of the view, and of Atoll
	cluster      string
}

func parseAddress(host string) (address, error) {
	base, err := url.Parse(host)
	if err != nil || base.Scheme != "https" {
		return address{}, errors.New("the server in the kubeconfig of the view is not an https URL: get another kubeconfig with `atoll join NAME --mode pull`")
	}
	base.Path = strings.TrimSuffix(base.Path, "/")
	at := strings.LastIndex(base.Path, v1alpha1.ViewsPath)
	if at < 0 {
		return address{}, fmt.Errorf("the server in the kubeconfig, %s, is not a view: the URL of a view ends in %sCLUSTER", host, v1alpha1.ViewsPath)
	}
	cluster, rest, ok := v1alpha1.ParseViewPath(base.Path[at:])
	if !ok || rest != "/" {
		return address{}, fmt.Errorf("the server in the kubeconfig, %s, is not a view: the URL of a view ends in %sCLUSTER", host, v1alpha1.ViewsPath)
	}
	out := address{view: base.String(), cluster: cluster}
	base.Path = base.Path[:at]
	out.server = base.String()
	return out, nil
}

// newTransport prepares the transport; it does not connect yet.
func (l *client) newTransport(way *rest.Config) (transport, error) {
	trust, err := rest.TLSConfigFor(way)
	if err != nil {
		return transport{}, fmt.Errorf("invalid kubeconfig of the view: %w", err)
	}
	pair, err := tls.X509KeyPair(way.CertData, way.KeyData)
	if err != nil {
		return transport{}, errors.New("the kubeconfig of the view has no valid client certificate and key: get another one with `atoll join NAME --mode pull`")
	}
	trust.Certificates = []tls.Certificate{pair}
	trust.GetClientCertificate = nil
	w := transport{tls: trust, proxy: way.Proxy, notAfter: pair.Leaf.NotAfter, notBefore: pair.Leaf.NotBefore}
	if w.proxy == nil {
		w.proxy = http.ProxyFromEnvironment
	}
	w.client = &http.Client{Transport: &http.Transport{TLSClientConfig: trust.Clone(), Proxy: w.proxy, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: requestTimeout, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}},
		// A redirect leads away from the view.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w, nil
}

func (l *client) current() transport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.transport
}

// do sends a request and decodes the response into out, if out is not nil. An error response of
// the server is returned as *apierrors.StatusError.
func (l *client) do(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	answer, err := l.send(ctx, l.current().client, method, l.base+path, content)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if out == nil {
		_, _ = io.Copy(io.Discard, answer.Body) // so that the connection can be reused
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		return fmt.Errorf("decode the response of %s: %w", l.base, err)
	}
	return nil
}

// watch opens a watch. ended is done when the watch should be reopened.
func (l *client) watch(ctx context.Context, path string, query url.Values) (body io.ReadCloser, ended context.Context, err error) {
	w := l.current()
	answer, err := l.send(ctx, w.client, http.MethodGet, l.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, nil, err
	}
	return answer.Body, w.ctx, nil
}

func (l *client) send(ctx context.Context, client *http.Client, method, url string, content io.Reader) (*http.Response, error) {
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
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return nil, decodeError(answer.StatusCode, body)
}

// decodeError decodes an error response. A response that was not written by a view, such as
// that of a proxy, has no reason: in particular, it is not a "not found".
func decodeError(code int, body []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(body, &status); err == nil && status.Kind == "Status" && status.Reason != "" {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return fmt.Errorf("the server responded %d %s, which is not a response of a view: check the server in the kubeconfig", code, http.StatusText(code))
}
