package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/member"
)

// deliveryNamespace is the namespace of the Deployments, in Atoll and in the clusters.
const deliveryNamespace = "bench"

// The routes that a Deployment can take to the cluster that runs it.
const (
	directly       = "to one cluster directly"
	toOneOf        = "through Atoll, one replica, to the clusters in turn"
	toEachOf       = "through Atoll, three replicas, one in each cluster"
	deliveryWarmup = 30
)

func deliveryCount(o options) int { return max(20, int(1000*o.scale)) }

// deliveryRate returns -rate, or by default the rate of the project's goal.
func deliveryRate(o options) int {
	if o.rate == defaultRate {
		return 50
	}
	return o.rate
}

// delivery holds the measurements of the Deployments of one run.
type delivery struct {
	Path  string `json:"path"`
	Round int    `json:"round"`
	// Until the create request was answered.
	AckP50 float64 `json:"acknowledged_p50_ms"`
	AckP99 float64 `json:"acknowledged_p99_ms"`
	// Until a watch in the cluster reported the Deployment, for each cluster that it is bound to.
	SeenP50 float64 `json:"in_member_p50_ms"`
	SeenP99 float64 `json:"in_member_p99_ms"`
	SeenMax float64 `json:"in_member_max_ms"`
	// Until all its replicas were ready in the cluster.
	RanP50 float64 `json:"ready_in_member_p50_ms"`
	RanP99 float64 `json:"ready_in_member_p99_ms"`
	// Until its status showed all replicas ready on the server where it was created.
	ReadyP50 float64 `json:"ready_p50_ms"`
	ReadyP99 float64 `json:"ready_p99_ms"`
	ReadyMax float64 `json:"ready_max_ms"`
	// CPU time per Deployment until all were ready.
	AtollMillis   float64 `json:"atoll_cpu_ms"`
	MembersMillis float64 `json:"members_cpu_ms"`
	// Requests that Atoll answered per Deployment, by verb and resource.
	Requests map[string]float64 `json:"requests,omitempty"`
	CPUs     float64            `json:"cpus"`
	disturbance
}

// route is one route, from the server where Deployments are created to the clusters.
type route struct {
	path     string
	from     *deploymentClient
	to       []*deploymentClient
	replicas int
	// pinned Deployments select their cluster by label.
	pinned bool
}

// deliveryBench holds the running server and clusters, and the routes between them.
type deliveryBench struct {
	server  *atoll.Server
	members []*member.Cluster
	ways    []route
}

func (r *report) measureDeliveries(ctx context.Context, o options, dir string) error {
	var ends cleanups
	defer ends.run()
	progress("starting three clusters, and a server of Atoll")
	s, err := startDeliveryBench(ctx, dir, &ends)
	if err != nil {
		return err
	}
	for round := range o.rounds {
		for turn := range s.ways {
			w := s.ways[(turn+round)%len(s.ways)]
			progress(fmt.Sprintf("round %d of %d: %s", round+1, o.rounds, w.path))
			settleDisk()
			row, err := s.measure(ctx, w, fmt.Sprintf("round-%d-%d", round, turn), deliveryCount(o), deliveryRate(o), o.profile)
			if err != nil {
				return fmt.Errorf("%s: %w", w.path, err)
			}
			row.Round = round
			r.Deliveries = append(r.Deliveries, row)
		}
	}
	return nil
}

// cleanups stops everything that was started, the last first.
type cleanups struct {
	mu  sync.Mutex
	set []func()
}

func (e *cleanups) add(end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set = append(e.set, end)
}

func (e *cleanups) run() {
	for _, end := range slices.Backward(e.set) {
		end()
	}
}

func startDeliveryBench(ctx context.Context, dir string, ends *cleanups) (*deliveryBench, error) {
	s := &deliveryBench{members: make([]*member.Cluster, len(islands))}
	group, starting := errgroup.WithContext(ctx)
	for i, name := range islands {
		group.Go(func() (err error) {
			s.members[i], err = startCluster(starting, filepath.Join(dir, name), name, ends.add)
			return err
		})
	}
	group.Go(func() (err error) {
		s.server, err = atoll.Start(starting, atoll.Config{Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log")})
		if err == nil {
			ends.add(s.server.Kill)
		}
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, err
	}
	admin, err := s.server.REST()
	if err != nil {
		return nil, err
	}
	here, err := newDeploymentClient(ctx, "Atoll", admin, true)
	if err != nil {
		return nil, err
	}
	var there []*deploymentClient
	for _, m := range s.members {
		progress("joining " + m.Name)
		at, err := s.join(ctx, admin, m)
		if err != nil {
			return nil, err
		}
		there = append(there, at)
	}
	s.ways = []route{
		{path: directly, from: there[0], to: there[:1], replicas: 1},
		{path: toOneOf, from: here, to: there, replicas: 1, pinned: true},
		{path: toEachOf, from: here, to: there, replicas: len(there)},
	}
	return s, nil
}

// join joins a cluster, with enough capacity on its node for all Deployments.
func (s *deliveryBench) join(ctx context.Context, admin *rest.Config, m *member.Cluster) (*deploymentClient, error) {
	kubeconfig, err := os.ReadFile(m.Kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := join.Push(ctx, admin, join.Options{Name: m.Name, Kubeconfig: kubeconfig}); err != nil {
		return nil, fmt.Errorf("join %s: %w", m.Name, err)
	}
	config, err := m.REST()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	room := []byte(`{"status":{"capacity":{"pods":"50k","cpu":"50k","memory":"99Ti"},"allocatable":{"pods":"50k","cpu":"50k","memory":"99Ti"}}}`)
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, n := range nodes.Items {
		if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, room, metav1.PatchOptions{}, "status"); err != nil {
			return nil, fmt.Errorf("raise the node capacity of %s: %w", m.Name, err)
		}
	}
	return newDeploymentClient(ctx, m.Name, config, m == s.members[0])
}

// measure creates Deployments on a route and returns their measurements.
func (s *deliveryBench) measure(ctx context.Context, w route, name string, count, rate int, profile string) (row delivery, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	row.Path = w.path
	if _, err := w.run(ctx, name+"-warm", deliveryWarmup, rate); err != nil {
		return row, fmt.Errorf("warm up: %w", err)
	}
	before, err := s.reading(ctx)
	if err != nil {
		return row, err
	}
	observed, err := observeMachine()
	if err != nil {
		return row, err
	}
	profiled := profileTo(ctx, s.server, profile, name, time.Duration(count)*time.Second/time.Duration(rate))
	t, err := w.run(ctx, name, count, rate)
	if err != nil {
		return row, err
	}
	if row.CPUs, row.disturbance, err = observed(); err != nil {
		return row, err
	}
	after, err := s.reading(ctx)
	if err != nil {
		return row, err
	}
	if err := profiled(); err != nil {
		return row, err
	}
	each := float64(count)
	row.AtollMillis = ms(after.atoll-before.atoll) / each
	row.MembersMillis = ms(after.members-before.members) / each
	row.Requests = after.requests.perObject(before.requests, each)
	t.summarize(&row)
	return row, nil
}

// reading holds the CPU times and Atoll's request counts so far.
type reading struct {
	atoll, members time.Duration
	requests       requests
}

func (s *deliveryBench) reading(ctx context.Context) (r reading, err error) {
	if r.atoll, err = processTime(s.server.PID()); err != nil {
		return r, err
	}
	for _, m := range s.members {
		t, err := processTime(m.PID())
		if err != nil {
			return r, err
		}
		r.members += t
	}
	r.requests, err = requestsOf(ctx, s.server)
	return r, err
}

// run creates Deployments at a rate and returns when all of them are ready on the server
// where they were created.
func (w route) run(ctx context.Context, name string, count, rate int) (*routeRun, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(count/rate+1)*time.Second+timeLimit)
	defer cancel()
	t := &routeRun{route: w, name: name, journal: (&writeNumbers{}).journal(count), here: newObservations(count, w.replicas)}
	group, watching := errgroup.WithContext(ctx)
	var open sync.WaitGroup
	watch := func(at *deploymentClient, seen *observations, expected int) {
		open.Add(1)
		done := sync.OnceFunc(open.Done)
		group.Go(func() error {
			defer done()
			return at.follow(watching, t, seen, expected, done)
		})
	}
	watch(w.from, t.here, count)
	for i, at := range w.to {
		if at == w.from {
			t.there = append(t.there, t.here)
			continue
		}
		seen := newObservations(count, 1)
		t.there = append(t.there, seen)
		expected := count
		if w.pinned {
			expected = (count - i + len(w.to) - 1) / len(w.to)
		}
		watch(at, seen, expected)
	}
	open.Wait()
	if watching.Err() != nil {
		return nil, group.Wait()
	}
	group.Go(func() error {
		return t.journal.send(watching, float64(rate), func(ctx context.Context, i, _ int) error {
			_, err := w.from.do(ctx, http.MethodPost, w.from.collectionURL, w.manifest(name, i))
			return err
		})
	})
	return t, group.Wait()
}

// manifest returns one Deployment of a realistic size.
func (w route) manifest(name string, i int) []byte {
	label := ""
	if w.pinned {
		label = fmt.Sprintf(`"fleet.atoll.dev/cluster":%q,`, w.to[i%len(w.to)].title)
	}
	return deployment(fmt.Sprintf("%s-%05d", name, i), label, w.replicas)
}

func deployment(name, label string, replicas int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":%[1]q,"labels":{%[2]s"app":%[1]q}},
"spec":{"replicas":%[3]d,"selector":{"matchLabels":{"app":%[1]q}},"template":{"metadata":{"labels":{"app":%[1]q}},
"spec":{"containers":[{"name":"web","image":"registry.example.com/shop/web:1.4.2","ports":[{"name":"http","containerPort":8080}],
"env":[{"name":"LOG_LEVEL","value":"info"},{"name":"REGION","value":"west"}],
"resources":{"requests":{"cpu":"10m","memory":"16Mi"},"limits":{"memory":"64Mi"}},
"readinessProbe":{"httpGet":{"path":"/ready","port":"http"},"periodSeconds":5}}]}}}}`, name, label, replicas)
}

// newDeploymentClient returns a client of an API server. With own, it creates the
// namespace of the Deployments; the other clusters get theirs from Atoll.
func newDeploymentClient(ctx context.Context, title string, config *rest.Config, own bool) (*deploymentClient, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if own {
		err := eventually(ctx, "create namespace "+deliveryNamespace+" in "+title, func(ctx context.Context) error {
			_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: deliveryNamespace}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	f, err := newAPIClient(title, config, "")
	if err != nil {
		return nil, err
	}
	f.collectionURL = strings.TrimSuffix(config.Host, "/") + "/apis/apps/v1/namespaces/" + deliveryNamespace + "/deployments"
	return &deploymentClient{f}, nil
}
