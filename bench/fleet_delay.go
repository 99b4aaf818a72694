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

	"github.com/atoll-dev/atoll/fleet"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/member"
)

// journeyNamespace is where the Deployments are, in Atoll and in the clusters.
const journeyNamespace = "bench"

// The ways that a Deployment can take to where it runs.
const (
	directly    = "to one cluster directly"
	toOneOf     = "by Atoll, one replica, to the clusters in turn"
	toEachOf    = "by Atoll, three replicas, one in each cluster"
	journeyWarm = 30
)

func journeyCount(o options) int { return max(20, int(1000*o.scale)) }

// journeyRate is what the goal speaks of unless somebody says otherwise.
func journeyRate(o options) int {
	if o.rate == defaultRate {
		return 50
	}
	return o.rate
}

// journey is what became of the Deployments of one run.
type journey struct {
	Path  string `json:"path"`
	Round int    `json:"round"`
	// Of the answer to the request that makes the Deployment.
	AckP50 float64 `json:"acknowledged_p50_ms"`
	AckP99 float64 `json:"acknowledged_p99_ms"`
	// Of the event that a watch in a cluster tells of it, of each cluster that it is
	// bound for.
	SeenP50 float64 `json:"in_member_p50_ms"`
	SeenP99 float64 `json:"in_member_p99_ms"`
	SeenMax float64 `json:"in_member_max_ms"`
	// Of all its replicas being ready in the cluster.
	RanP50 float64 `json:"ready_in_member_p50_ms"`
	RanP99 float64 `json:"ready_in_member_p99_ms"`
	// Of all its replicas being ready in the status that is read where it was made.
	ReadyP50 float64 `json:"ready_p50_ms"`
	ReadyP99 float64 `json:"ready_p99_ms"`
	ReadyMax float64 `json:"ready_max_ms"`
	// Processor time for each Deployment until all are ready.
	AtollMillis   float64 `json:"atoll_cpu_ms"`
	MembersMillis float64 `json:"members_cpu_ms"`
	// Requests for each Deployment that Atoll answered, by verb and resource.
	Requests map[string]float64 `json:"requests,omitempty"`
	CPUs     float64            `json:"cpus"`
	disturbance
}

// road is one way, from where Deployments are made to the clusters.
type road struct {
	path     string
	from     *site
	to       []*site
	replicas int
	// pinned Deployments name the cluster that they are to run in.
	pinned bool
}

// roads are the ways, over clusters and a server that run.
type roads struct {
	server  *atoll.Server
	members []*member.Cluster
	ways    []road
}

func (r *report) measureJourneys(ctx context.Context, o options, dir string) error {
	var ends ending
	defer ends.all()
	progress("starting three clusters, and a server of Atoll")
	s, err := startRoads(ctx, dir, &ends)
	if err != nil {
		return err
	}
	for round := range o.rounds {
		for turn := range s.ways {
			w := s.ways[(turn+round)%len(s.ways)]
			progress(fmt.Sprintf("round %d of %d: %s", round+1, o.rounds, w.path))
			settleDisk()
			row, err := s.measure(ctx, w, fmt.Sprintf("round-%d-%d", round, turn), journeyCount(o), journeyRate(o), o.profile)
			if err != nil {
				return fmt.Errorf("%s: %w", w.path, err)
			}
			row.Round = round
			r.Journeys = append(r.Journeys, row)
		}
	}
	return nil
}

// ending ends what was started, the last first.
type ending struct {
	mu  sync.Mutex
	set []func()
}

func (e *ending) add(end func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set = append(e.set, end)
}

func (e *ending) all() {
	for _, end := range slices.Backward(e.set) {
		end()
	}
}

func startRoads(ctx context.Context, dir string, ends *ending) (*roads, error) {
	s := &roads{members: make([]*member.Cluster, len(islands))}
	group, starting := errgroup.WithContext(ctx)
	for i, name := range islands {
		group.Go(func() (err error) {
			s.members[i], err = startIsland(starting, filepath.Join(dir, name), name, ends.add)
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
	here, err := newSite(ctx, "Atoll", admin, true)
	if err != nil {
		return nil, err
	}
	var there []*site
	for _, m := range s.members {
		progress("joining " + m.Name)
		at, err := s.join(ctx, admin, m)
		if err != nil {
			return nil, err
		}
		there = append(there, at)
	}
	s.ways = []road{
		{path: directly, from: there[0], to: there[:1], replicas: 1},
		{path: toOneOf, from: here, to: there, replicas: 1, pinned: true},
		{path: toEachOf, from: here, to: there, replicas: len(there)},
	}
	return s, nil
}

// join has a cluster join, with room on its node for all that will run.
func (s *roads) join(ctx context.Context, admin *rest.Config, m *member.Cluster) (*site, error) {
	kubeconfig, err := os.ReadFile(m.Kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := fleet.Join(ctx, admin, fleet.JoinOptions{Name: m.Name, Kubeconfig: kubeconfig}); err != nil {
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
			return nil, fmt.Errorf("make room in %s: %w", m.Name, err)
		}
	}
	return newSite(ctx, m.Name, config, m == s.members[0])
}

// measure sends Deployments along a road, and tells how they fared.
func (s *roads) measure(ctx context.Context, w road, name string, count, rate int, profile string) (row journey, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	row.Path = w.path
	if _, err := w.travel(ctx, name+"-warm", journeyWarm, rate); err != nil {
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
	t, err := w.travel(ctx, name, count, rate)
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
	row.Requests = after.requests.since(before.requests, each)
	t.judge(&row)
	return row, nil
}

// reading is what has been used, and asked of Atoll, so far.
type reading struct {
	atoll, members time.Duration
	requests       requests
}

func (s *roads) reading(ctx context.Context) (r reading, err error) {
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

// travel sends Deployments at a rate and returns when all of them are ready where
// they were made.
func (w road) travel(ctx context.Context, name string, count, rate int) (*travel, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(count/rate+1)*time.Second+timeLimit)
	defer cancel()
	t := &travel{road: w, name: name, journal: (&nextWrite{}).journal(count), here: newSightings(count, w.replicas)}
	group, watching := errgroup.WithContext(ctx)
	var open sync.WaitGroup
	watch := func(at *site, seen *sightings, expected int) {
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
		seen := newSightings(count, 1)
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
		return t.journal.keep(watching, float64(rate), func(ctx context.Context, i, _ int) error {
			_, err := w.from.do(ctx, http.MethodPost, w.from.notes, w.manifest(name, i))
			return err
		})
	})
	return t, group.Wait()
}

// manifest is one Deployment, as small as people's are.
func (w road) manifest(name string, i int) []byte {
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

// newSite is an API server; with own, the namespace of the Deployments is made there:
// the other clusters get theirs from Atoll.
func newSite(ctx context.Context, title string, config *rest.Config, own bool) (*site, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if own {
		err := eventually(ctx, "make namespace "+journeyNamespace+" in "+title, func(ctx context.Context) error {
			_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: journeyNamespace}}, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	f, err := newFace(title, config, "")
	if err != nil {
		return nil, err
	}
	f.notes = strings.TrimSuffix(config.Host, "/") + "/apis/apps/v1/namespaces/" + journeyNamespace + "/deployments"
	return &site{f}, nil
}
