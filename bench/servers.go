package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/playground/atoll"
	"github.com/atoll-dev/atoll/playground/child"
)

// serverRun is one run of one whole API server.
type serverRun struct {
	System string `json:"system"`
	Round  int    `json:"round"`
	// Rate is creates per second; P50 and P99 are the latencies of a create.
	Rate float64 `json:"rate"`
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	// CPUMillis is the CPU time of all processes of the system, its store included, per
	// create. Unlike the rate, it hardly depends on other load of the machine, and not at all
	// on the cost of the clients.
	CPUMillis float64 `json:"cpu_ms"`
	// MemoryMiB is the resident memory of all processes of the system right after the run,
	// its store included.
	MemoryMiB float64 `json:"memory_mib"`
	// ReadySeconds is the time from the start of the first process to /readyz.
	ReadySeconds float64 `json:"ready_s"`
}

// apiServer is a whole API server with its store, started for one run.
type apiServer struct {
	title string
	// start starts its processes in an empty directory, and returns them and
	// the path of an administrator's kubeconfig.
	start func(ctx context.Context, dir string) ([]*child.Process, string, error)
}

// transports is the number of TCP connections that the clients share. 64 clients on one
// connection would measure HTTP/2's flow control more than the server.
const transports = 8

// measure starts the server, creates count ConfigMaps from several clients, and stops it.
func (a apiServer) measure(ctx context.Context, dir string, clients, count int) (run serverRun, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return run, err
	}
	began := time.Now()
	processes, kubeconfig, err := a.start(ctx, dir)
	defer func() {
		for i := len(processes) - 1; i >= 0; i-- {
			err = errors.Join(err, processes[i].Stop())
		}
	}()
	if err != nil {
		return run, err
	}
	apis, err := connect(kubeconfig)
	if err != nil {
		return run, err
	}
	if err := waitReady(ctx, apis[0]); err != nil {
		return run, fmt.Errorf("%s: %w", a.title, err)
	}
	run.ReadySeconds = time.Since(began).Seconds()

	create := func(name string) func(context.Context, int, int) error {
		data := values(256)
		return func(ctx context.Context, c, i int) error {
			_, err := apis[c%len(apis)].CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%06d", name, i)},
				BinaryData: map[string][]byte{"data": data[i%len(data)]},
			}, metav1.CreateOptions{})
			return err
		}
	}
	if _, _, err := parallel(ctx, clients, max(100, count/20), create("warm")); err != nil {
		return run, fmt.Errorf("%s: warm up: %w", a.title, err)
	}
	before, err := processorTime(processes)
	if err != nil {
		return run, err
	}
	rate, s, err := parallel(ctx, clients, count, create("object"))
	if err != nil {
		return run, fmt.Errorf("%s: create ConfigMaps: %w", a.title, err)
	}
	after, err := processorTime(processes)
	if err != nil {
		return run, err
	}
	run.System, run.Rate, run.P50, run.P99 = a.title, rate, s.ms(50), s.ms(99)
	run.CPUMillis = float64((after - before).Milliseconds()) / float64(count)
	for _, p := range processes {
		mib, err := residentMiB(p.PID())
		if err != nil {
			return run, err
		}
		run.MemoryMiB += mib
	}
	return run, nil
}

// processorTime returns the CPU time that the processes have used together.
func processorTime(processes []*child.Process) (time.Duration, error) {
	var sum time.Duration
	for _, p := range processes {
		t, err := processTime(p.PID())
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// connect returns clients with a connection each.
func connect(kubeconfig string) ([]kubernetes.Interface, error) {
	var out []kubernetes.Interface
	for range transports {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, err
		}
		config.QPS = -1
		config.ContentType = "application/vnd.kubernetes.protobuf"
		config.AcceptContentTypes = config.ContentType
		// client-go shares connections between equal configurations. A separate dialer makes
		// them different.
		config.Dial = (&net.Dialer{}).DialContext
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		out = append(out, client)
	}
	return out, nil
}

// waitReady waits until the server is ready and has created its default namespace.
func waitReady(ctx context.Context, api kubernetes.Interface) error {
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		_, err := api.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			_, err = api.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("did not become ready: %w", err)
		case <-tick.C:
		}
	}
}

// upstreamServer is upstream's generic control plane over an etcd of its own.
func upstreamServer() apiServer {
	return apiServer{title: "upstream+etcd", start: func(ctx context.Context, dir string) ([]*child.Process, string, error) {
		store, err := startRemoteStore(ctx, etcdTitle, etcdRole, storeConfig{Dir: filepath.Join(dir, "etcd")}, 1)
		if err != nil {
			return nil, "", err
		}
		processes := []*child.Process{store.process}
		server, err := child.Start(child.Spec{
			Role: upstreamRole, Name: "upstream", LogFile: filepath.Join(dir, "upstream.log"),
			Config: serverConfig{Dir: dir, Store: store.address},
		})
		if err != nil {
			return processes, "", err
		}
		var r serverReady
		err = server.WaitReady(ctx, &r)
		return append(processes, server), r.Kubeconfig, err
	}}
}

// atollServer is `atoll server` on its embedded store: one process.
func atollServer(title string, flags ...string) apiServer {
	return apiServer{title: title, start: func(ctx context.Context, dir string) ([]*child.Process, string, error) {
		server, err := atoll.Start(ctx, atoll.Config{
			Dir: filepath.Join(dir, "atoll"), LogFile: filepath.Join(dir, "atoll.log"), Flags: flags,
		})
		if err != nil {
			return nil, "", err
		}
		return []*child.Process{server.Process}, server.Kubeconfig, nil
	}}
}

// serverConfig is the configuration of upstream's child process.
type serverConfig struct {
	Dir string
	// Store is an etcd endpoint.
	Store string
}

// serverReady is reported by that process as soon as its kubeconfig is written.
type serverReady struct{ Kubeconfig string }
