package fleet

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// The bounds of a member's answers. A member may be in the hands of someone else, and an answer without an end would take
// all memory of the server.
const (
	maxCheck     = 256 << 10 // /readyz, /version and the like
	maxDiscovery = 16 << 20  // a document of discovery or OpenAPI
	maxObject    = 8 << 20   // one object, or one event of a watch: API servers store no more than a few MiB
	maxAnswer    = 16 << 20  // a page of a list: see EachPage
)

// BoundAnswers limits what a client reads of a member's answers, and has it follow no redirects: they could lead it, with
// its credentials, to any server that the control plane reaches.
func BoundAnswers(cfg *rest.Config) {
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedAnswers{next} })
}

type boundedAnswers struct{ next http.RoundTripper }

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return answer, nil // a stream, which whoever asked for it bounds
	}
	if answer.StatusCode/100 == 3 && answer.Header.Get("Location") != "" {
		answer.Body.Close()
		return nil, AnswerError{fmt.Sprintf("the answer to %s is a redirect, which is not followed: set clusters[].cluster.server in the kubeconfig to the address of the cluster's API server", request.URL.Path)}
	}
	if answer.StatusCode == http.StatusOK && isWatch(request) {
		answer.Body = &boundedEvents{ReadCloser: answer.Body}
		return answer, nil
	}
	answer.Body = &boundedBody{ReadCloser: answer.Body, left: boundOf(request.URL.Path), path: request.URL.Path}
	return answer, nil
}

func isWatch(r *http.Request) bool {
	return r.Method == http.MethodGet && (r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1")
}

// boundOf returns how many bytes the answer to a request may have.
func boundOf(path string) int64 {
	// The address of a member may have a path itself, such as that of its proxy in Atoll.
	const proxies = "/apis/" + v1alpha1.Group + "/" + v1alpha1.Version + "/clusters/"
	if _, below, isProxy := strings.Cut(path, proxies); isProxy {
		_, path, _ = strings.Cut(below, "/proxy")
	}
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		rest := len(parts) - i - 1
		switch {
		case rest == 0 && (part == "readyz" || part == "livez" || part == "healthz" || part == "version"):
			return maxCheck
		case part == "openapi", part == "api" && rest <= 1, part == "apis" && rest <= 2:
			return maxDiscovery
		case part == "api":
			return boundOfResource(parts[i+2:])
		case part == "apis":
			return boundOfResource(parts[i+3:])
		}
	}
	return maxDiscovery
}

// boundOfResource returns how many bytes the answer about objects may have. path is the part after the version.
func boundOfResource(path []string) int64 {
	if len(path) > 1 && path[0] == "namespaces" {
		path = path[2:] // RESOURCE/NAME/SUBRESOURCE; empty for the namespace itself
	}
	if len(path) == 1 {
		return maxAnswer
	}
	return maxObject
}

// AnswerError reports an answer of a member that is not accepted: it is too long, or a redirect.
type AnswerError struct{ message string }

func (e AnswerError) Error() string { return e.message }

func tooLong(what string) error {
	return AnswerError{what + " is longer than any of a Kubernetes API server: check which server answers at the address in the kubeconfig"}
}

// boundedBody ends with an error after so many bytes.
type boundedBody struct {
	io.ReadCloser
	left int64
	path string
}

func (b *boundedBody) Read(p []byte) (n int, err error) {
	if b.left < 0 {
		return 0, tooLong("the answer to " + b.path)
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err = b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, tooLong("the answer to " + b.path)
	}
	return n, err
}

// boundedEvents ends with an error if one event of a watch is too long. Events of JSON end with a newline, which
// strings in them do not contain. The decoder of other formats has a bound of its own.
type boundedEvents struct {
	io.ReadCloser
	since int // bytes since the last newline
}

func (b *boundedEvents) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	if at := bytes.LastIndexByte(p[:n], '\n'); at >= 0 {
		b.since = n - at - 1
	} else {
		b.since += n
	}
	if b.since > maxObject {
		return 0, tooLong("an event of the cluster")
	}
	return n, err
}
