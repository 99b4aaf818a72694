package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/keys"
)

const (
	// fleetNamespaces is the number of namespaces of the objects.
	fleetNamespaces = 100
	// fleetWorkload is the prefix of the objects' names, before a number.
	fleetWorkload = "web"
	// fleetClients is the number of clients that create them.
	fleetClients = 32
	// fleetWaiting limits the objects that are created and not ready yet. Without a limit, the
	// memory of a growing queue would be measured.
	fleetWaiting = 2000
	// fleetTimeout is the timeout for joining and for filling: 100,000 objects take more than
	// an hour on two cores.
	fleetTimeout = 3 * time.Hour
)

// fleetSize is the size of a simulated fleet.
type fleetSize struct {
	Members int `json:"members"`
	Objects int `json:"objects"`
	quiet   time.Duration
}

func fleetPlan(o options) fleetSize {
	f := fleetSize{Members: 1000, Objects: max(10, int(100_000*o.scale)), quiet: time.Minute}
	if o.members != defaultMembers {
		first, _, _ := strings.Cut(o.members, ",")
		if n, err := strconv.Atoi(strings.TrimSpace(first)); err == nil && n > 0 {
			f.Members = n
		}
	}
	if o.scale < 1 {
		f.quiet /= 2
	}
	return f
}

// atRest holds the resources that an idle server uses.
type atRest struct {
	RSSMiB     float64 `json:"rss_mib"`
	HeapMiB    float64 `json:"heap_mib"` // in use, after a collection
	Goroutines float64 `json:"goroutines"`
	CPUs       float64 `json:"cpus"`
	// Requests per second that it answers, its own included, and that it sends to members.
	Requests float64 `json:"requests_per_s"`
	Asked    float64 `json:"asked_per_s"`
}

// fleetRun holds the measurements of a simulated fleet.
type fleetRun struct {
	fleetSize
	Empty     atRest `json:"empty"`
	Joined    atRest `json:"joined"`
	Bound     atRest `json:"bound"`
	Restarted atRest `json:"again"`
	// JoinSeconds until all members are Ready, FillSeconds until all objects are ready in the
	// status that Atoll shows, and Atoll's CPU time per object.
	JoinSeconds float64 `json:"join_s"`
	FillSeconds float64 `json:"fill_s"`
	FillMillis  float64 `json:"fill_cpu_ms"`
	Connections int64   `json:"connections"`
	// Times of another server on the same data after the first was killed: until it answers,
	// until it watches every member again, and until a new Deployment is ready.
	RestartReady    float64 `json:"again_ready_s"`
	RestartWatched  float64 `json:"again_watched_s"`
	RestartComplete float64 `json:"again_complete_s"`
	// RestartCPU is the CPU time that it had used by then.
	RestartCPU float64 `json:"again_cpu_s"`
	// RestartWrites are the write requests that it got until then, by verb and resource.
	RestartWrites requests `json:"again_writes"`
}

// step is a part of a run.
type step struct {
	name string
	do   func(context.Context, *fleetRun) error
}

// fleetBench is a run with a server and the process that simulates the members.
type fleetBench struct {
	fleetSize
	dir         string
	keep        string
	fillFaster  bool // the fleet is filled faster with more memory, and not measured meanwhile
	server      *atoll.Server
	process     *child.Process
	keys        *keys.Keys
	ports       []int
	crowdClient *http.Client
}

func (f fleetSize) measure(ctx context.Context, dir string, o options) (run fleetRun, err error) {
	run.fleetSize = f
	m := &fleetBench{fleetSize: f, dir: dir, keep: o.keep, fillFaster: o.keep != ""}
	defer func() {
		if m.server != nil {
			m.server.Kill()
		}
		if m.process != nil {
			m.process.Kill()
		}
	}()
	rest := func(name string, of func(*fleetRun) *atRest) step {
		return step{"rest, " + name, m.measureAtRest(of, o.profile, strings.Fields(name)[0])}
	}
	steps := []step{
		{"start", m.start},
		rest("empty of members", func(r *fleetRun) *atRest { return &r.Empty }),
		{"join", m.join},
		rest("joined, with nothing bound", func(r *fleetRun) *atRest { return &r.Joined }),
		{"fill", m.fill},
		rest("bound", func(r *fleetRun) *atRest { return &r.Bound }),
	}
	if o.keep != "" {
		steps = []step{{"start", m.start}, {"join", m.join}, {"fill", m.fill}, {"keep the filled fleet", m.store}}
		if isKept(o.keep) {
			steps = []step{{"restore the kept fleet", m.restore}}
		}
	}
	for _, step := range append(steps,
		step{"start another server", m.restart(o.profile)},
		rest("again, after another start", func(r *fleetRun) *atRest { return &r.Restarted }),
	) {
		progress(step.name)
		if err := step.do(ctx, &run); err != nil {
			return run, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return run, nil
}

func (m *fleetBench) start(ctx context.Context, _ *fleetRun) (err error) {
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	if m.keys, err = loadKeys(m.dir); err != nil {
		return err
	}
	if err := m.startServer(ctx); err != nil {
		return err
	}
	if err := m.documents(ctx); err != nil {
		return err
	}
	return m.startCrowd(ctx)
}

// startCrowd starts the members, with their kept objects if there are any.
func (m *fleetBench) startCrowd(ctx context.Context) (err error) {
	cfg := crowdConfig{Members: m.Members, ServerCert: m.keys.ServerCert, Key: m.keys.ServerKey, Documents: filepath.Join(m.dir, documentsFile)}
	if m.keep != "" {
		cfg.FirstPort, cfg.Kept = keptPort, filepath.Join(m.dir, membersFile)
	}
	m.process, err = child.Start(child.Spec{Role: crowdRole, Name: "simulated members", LogFile: filepath.Join(m.dir, "crowd.log"), Config: cfg})
	if err != nil {
		return err
	}
	var ready crowdReady
	if err := m.process.WaitReady(ctx, &ready); err != nil {
		return err
	}
	m.ports = ready.Ports
	authority, err := os.ReadFile(m.keys.CACert)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	m.crowdClient = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	return nil
}

func (m *fleetBench) startServer(ctx context.Context) (err error) {
	cfg := atoll.Config{Dir: filepath.Join(m.dir, serverDir), LogFile: filepath.Join(m.dir, "atoll.log")}
	if m.fillFaster {
		cfg.Wrapper = []string{"env", "GOGC=400"}
	}
	m.server, err = atoll.Start(ctx, cfg)
	return err
}

// documents writes the OpenAPI documents of Kubernetes' types, as Atoll serves them, to a
// file. The members serve the same documents.
func (m *fleetBench) documents(ctx context.Context) error {
	out := map[string][]byte{}
	index, err := getPath(ctx, m.server, "/openapi/v3")
	if err != nil {
		return err
	}
	var listed struct {
		Paths map[string]struct {
			ServerRelativeURL string `json:"serverRelativeURL"`
		} `json:"paths"`
	}
	if err := json.Unmarshal(index, &listed); err != nil {
		return err
	}
	for path, at := range listed.Paths {
		if strings.Contains(path, "atoll.dev") || !strings.HasPrefix(path, "api") {
			delete(listed.Paths, path)
			continue
		}
		address, _, _ := strings.Cut(at.ServerRelativeURL, "?")
		if out[address], err = getPath(ctx, m.server, at.ServerRelativeURL); err != nil {
			return err
		}
	}
	if out["/openapi/v3"], err = json.Marshal(listed); err != nil {
		return err
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, documentsFile), raw, 0o600)
}

// join registers all members and waits until they are Ready.
func (m *fleetBench) join(ctx context.Context, run *fleetRun) error {
	began := time.Now()
	kube, err := m.kube()
	if err != nil {
		return err
	}
	config, err := m.server.REST()
	if err != nil {
		return err
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	if _, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	authority, err := os.ReadFile(m.keys.CACert)
	if err != nil {
		return err
	}
	if err := each(ctx, m.Members, func(ctx context.Context, i int) error {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "cluster-" + memberName(i), Namespace: v1alpha1.SystemNamespace},
			Type: v1alpha1.KubeconfigSecretType, Data: map[string][]byte{v1alpha1.KubeconfigSecretKey: m.kubeconfig(i, authority)}}
		if _, err := kube.CoreV1().Secrets(v1alpha1.SystemNamespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := dyn.Resource(v1alpha1.ClusterResource).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "Cluster", "metadata": map[string]any{"name": memberName(i)},
			"spec": map[string]any{"kubeconfigSecretRef": map[string]any{"namespace": secret.Namespace, "name": secret.Name}}}}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	err = waitFor(ctx, "members are Ready", func(ctx context.Context) (int, int, error) {
		list, err := dyn.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return 0, m.Members, err
		}
		ready := 0
		for i := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(list.Items[i].Object, "status", "conditions")
			for _, c := range conditions {
				if c, ok := c.(map[string]any); ok && c["type"] == v1alpha1.ClusterReady && c["status"] == "True" {
					ready++
				}
			}
		}
		return ready, m.Members, nil
	})
	run.JoinSeconds = time.Since(began).Seconds()
	return err
}

// each calls do for each number, from several clients, until a call fails.
func each(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(fleetClients)
	for i := 0; i < count && ctx.Err() == nil; i++ {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// kubeconfig returns the kubeconfig of a member. Its certificate authority differs in a
// comment: for members with the same authority, client-go would share one transport.
func (m *fleetBench) kubeconfig(i int, authority []byte) []byte {
	ca := base64.StdEncoding.EncodeToString(append([]byte("# of "+memberName(i)+"\n"), authority...))
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:%d","certificate-authority-data":%q}}],"users":[{"name":"u","user":{"token":%q}}]}`, m.ports[i], ca, memberName(i))
}

// waitFor polls until everything is done, and shows the progress.
func waitFor(ctx context.Context, what string, look func(context.Context) (done, all int, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		done, all, err := look(ctx)
		if err == nil && done >= all {
			return nil
		}
		progress(fmt.Sprintf("%d of %d %s", done, all, what))
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%d of %d %s: %w", done, all, what, context.Cause(ctx)), err)
		case <-tick.C:
		}
	}
}

func (m *fleetBench) kube() (kubernetes.Interface, error) {
	config, err := m.server.REST()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// fill creates the objects, each for one member, and waits until all are ready.
func (m *fleetBench) fill(ctx context.Context, run *fleetRun) error {
	began := time.Now()
	used, err := processTime(m.server.PID())
	if err != nil {
		return err
	}
	kube, err := m.kube()
	if err != nil {
		return err
	}
	for i := range fleetNamespaces {
		_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fleetNamespace(i)}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, fleetTimeout)
	defer cancel()
	from, err := m.deploymentClient()
	if err != nil {
		return err
	}
	waiting := make(chan struct{}, fleetWaiting)
	t := &routeRun{name: fleetWorkload, journal: (&writeNumbers{}).journal(m.Objects)}
	seen := newObservations(m.Objects, 1)
	var left int
	seen.onReady = func() {
		<-waiting
		if left++; left%1000 == 0 {
			progress(fmt.Sprintf("%d of %d Deployments are ready", left, m.Objects))
		}
	}
	ended := make(chan error, 1)
	var synced sync.WaitGroup
	synced.Add(1)
	go func() { ended <- from.follow(ctx, t, seen, m.Objects, sync.OnceFunc(synced.Done)) }()
	synced.Wait()
	if err := each(ctx, m.Objects, func(ctx context.Context, i int) error {
		select {
		case waiting <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return m.create(ctx, from, t.name, i, i%m.Members)
	}); err != nil {
		return err
	}
	if err := <-ended; err != nil {
		return err
	}
	run.FillSeconds = time.Since(began).Seconds()
	usedThen, err := processTime(m.server.PID())
	run.FillMillis = ms(usedThen-used) / float64(m.Objects)
	return err
}

// objectName returns a name whose length is the same for every object.
func objectName(name string, i int) string { return fmt.Sprintf("%s-%06d", name, i) }

func fleetNamespace(i int) string { return fmt.Sprintf("shop-%02d", i%fleetNamespaces) }

// create creates one Deployment for one member. All Deployments of a member are in one namespace.
func (m *fleetBench) create(ctx context.Context, from *deploymentClient, name string, i, member int) error {
	at := strings.Replace(from.collectionURL, "/deployments", "/namespaces/"+fleetNamespace(member)+"/deployments", 1)
	label := fmt.Sprintf(`%q:%q,`, v1alpha1.ClusterLabel, memberName(member))
	_, err := from.do(ctx, http.MethodPost, at, deployment(objectName(name, i), label, 1))
	return err
}

// deploymentClient returns a client of Atoll for the Deployments of all namespaces.
func (m *fleetBench) deploymentClient() (*deploymentClient, error) {
	config, err := m.server.REST()
	if err != nil {
		return nil, err
	}
	f, err := newAPIClient("Atoll", config, "")
	if err != nil {
		return nil, err
	}
	f.collectionURL = strings.TrimSuffix(config.Host, "/") + "/apis/apps/v1/deployments"
	return &deploymentClient{f}, nil
}

func (m *fleetBench) stats(ctx context.Context) (s crowdStats, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d%s", m.ports[0], statsPath), nil)
	if err != nil {
		return s, err
	}
	answer, err := m.crowdClient.Do(request)
	if err != nil {
		return s, err
	}
	defer answer.Body.Close()
	return s, json.NewDecoder(answer.Body).Decode(&s)
}

// measureAtRest measures an idle period, once earlier work has finished.
func (m *fleetBench) measureAtRest(of func(*fleetRun) *atRest, profile, name string) func(context.Context, *fleetRun) error {
	return func(ctx context.Context, run *fleetRun) error {
		if err := m.settle(ctx); err != nil {
			return err
		}
		before, err := m.readCounters(ctx)
		if err != nil {
			return err
		}
		profiled := profileTo(ctx, m.server, profile, name, m.quiet)
		select {
		case <-time.After(m.quiet):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := m.readCounters(ctx)
		if err != nil {
			return err
		}
		if err := profiled(); err != nil {
			return err
		}
		r, seconds := of(run), after.at.Sub(before.at).Seconds()
		r.CPUs = (after.used - before.used).Seconds() / seconds
		r.Requests, r.Asked = (after.requests-before.requests)/seconds, float64(after.asked-before.asked)/seconds
		run.Connections = after.connections
		if r.RSSMiB, err = residentMiB(m.server.PID()); err != nil {
			return err
		}
		if _, err := getPath(ctx, m.server, "/debug/pprof/heap?gc=1"); err != nil {
			return err
		}
		metrics, err := getPath(ctx, m.server, "/metrics")
		if err != nil {
			return err
		}
		r.HeapMiB, r.Goroutines = gauge(metrics, "go_memstats_heap_alloc_bytes")/(1<<20), gauge(metrics, "go_goroutines")
		return nil
	}
}

// gauge returns the value of a metric without labels, 0 if it is missing.
func gauge(metrics []byte, name string) float64 {
	_, rest, _ := bytes.Cut(metrics, []byte("\n"+name+" "))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	value, err := strconv.ParseFloat(string(line), 64)
	if err != nil {
		return 0
	}
	return value
}

// settle waits until the server's CPU usage stops falling, for at most ten minutes.
func (m *fleetBench) settle(ctx context.Context) error {
	last := time.Duration(1<<62 - 1)
	for range 60 {
		before, err := processTime(m.server.PID())
		if err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, err := processTime(m.server.PID())
		if err != nil {
			return err
		}
		used := after - before
		if used > last*9/10 {
			return nil
		}
		last = used
	}
	return nil
}

// restReading is a reading of counters.
type restReading struct {
	at                 time.Time
	used               time.Duration
	requests           float64
	asked, connections int64
}

func (m *fleetBench) readCounters(ctx context.Context) (g restReading, err error) {
	all, err := requestsOf(ctx, m.server)
	if err != nil {
		return g, err
	}
	for _, n := range all {
		g.requests += n
	}
	s, err := m.stats(ctx)
	if err != nil {
		return g, err
	}
	g.asked, g.connections = s.Requests, s.Connections
	g.at = time.Now()
	g.used, err = processTime(m.server.PID())
	return g, err
}
