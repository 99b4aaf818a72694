package coordination

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// leaseServer implements the parts of an API server that a lock needs, in memory, so that
// tests can use a fake clock. Tests in server/ use the real one.
type leaseServer struct {
	mu       sync.Mutex
	revision int64
	leases   map[string]*unstructured.Unstructured
}

func newLeaseServer() *leaseServer {
	return &leaseServer{leases: map[string]*unstructured.Unstructured{}}
}

// link is one client's connection to the server.
type link struct {
	server *leaseServer
	mu     sync.Mutex
	down   bool // requests are lost
	deaf   bool // requests arrive, answers are lost
}

func (s *leaseServer) connect() (*link, *rest.Config) {
	l := &link{server: s}
	return l, &rest.Config{Host: "http://atoll", Transport: l}
}

func (l *link) set(down, deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down, l.deaf = down, deaf
}

func (l *link) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	down, deaf := l.down, l.deaf
	l.mu.Unlock()
	if down {
		return nil, errors.New("no route to host")
	}
	answer, err := l.server.serve(req)
	if deaf {
		return nil, errors.New("connection reset by peer")
	}
	code := http.StatusOK
	if err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			return nil, err
		}
		s := status.Status()
		s.APIVersion, s.Kind = "v1", "Status"
		answer, code = s, int(s.Code)
	}
	body, err := json.Marshal(answer)
	return &http.Response{
		StatusCode: code, Request: req, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)),
	}, err
}

func (s *leaseServer) serve(req *http.Request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if req.Method == http.MethodGet {
		name := path.Base(req.URL.Path)
		if lease := s.leases[name]; lease != nil {
			return lease, nil
		}
		return nil, apierrors.NewNotFound(LeaseResource.GroupResource(), name)
	}
	obj := &unstructured.Unstructured{}
	if err := json.NewDecoder(req.Body).Decode(&obj.Object); err != nil {
		return nil, err
	}
	name, old := obj.GetName(), s.leases[obj.GetName()]
	switch {
	case req.Method == http.MethodPost && old != nil:
		return nil, apierrors.NewAlreadyExists(LeaseResource.GroupResource(), name)
	case req.Method == http.MethodPut && old == nil:
		return nil, apierrors.NewNotFound(LeaseResource.GroupResource(), name)
	case old != nil && old.GetResourceVersion() != obj.GetResourceVersion():
		return nil, apierrors.NewConflict(LeaseResource.GroupResource(), name, errors.New("it was changed"))
	}
	s.revision++
	obj.SetGeneration(1)
	obj.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", s.revision)))
	if old != nil {
		obj.SetUID(old.GetUID())
		obj.SetGeneration(old.GetGeneration())
		if !equality.Semantic.DeepEqual(old.Object["spec"], obj.Object["spec"]) {
			obj.SetGeneration(old.GetGeneration() + 1)
		}
	}
	obj.SetResourceVersion(strconv.FormatInt(s.revision, 10))
	s.leases[name] = obj
	return obj, nil
}

// remove deletes all leases.
func (s *leaseServer) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.leases)
}
