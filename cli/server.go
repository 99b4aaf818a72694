package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/server"
)

func newServerCommand() *cobra.Command {
	cfg := server.Config{
		DataDir:     defaultDataDir(),
		BindAddress: "127.0.0.1",
		SecurePort:  6443,
		MemberPort:  6444,

		HistoryRetention: 5 * time.Minute,
	}
	workloads := true
	verbosity := 0
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a control plane",
		Long: `Run a control plane: a Kubernetes-style API over an embedded or external datastore.

On the first start it makes its own certificate authority, certificates and
service-account key in DIR/pki, and writes DIR/admin.kubeconfig. It stops
gracefully on SIGINT or SIGTERM; a second signal kills it.`,
		Example: `  # A control plane on this machine
  atoll server --data-dir ./atoll
  kubectl --kubeconfig ./atoll/admin.kubeconfig get namespaces

  # Reachable from others, by a name that is put into its certificate
  atoll server --data-dir /var/lib/atoll --bind-address 0.0.0.0 --tls-name atoll.example.com`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var serving atomic.Bool
			log, err := setLogging(cmd.ErrOrStderr(), verbosity, &serving)
			if err != nil {
				return err
			}
			cfg.Log = log
			cfg.WithoutWorkloadAPIs = !workloads
			cfg.Datastore = orEnvironment(cfg.Datastore)
			if cfg.ProviderKeeper, err = keeper(); err != nil {
				return fmt.Errorf("find this program's file: %w", err)
			}
			return runServer(cmd.Context(), cfg, cmd.ErrOrStderr(), &serving)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&cfg.DataDir, "data-dir", cfg.DataDir, "Directory for certificates, the admin's kubeconfig and the embedded datastore.")
	flags.StringVar(&cfg.Datastore, "datastore", "", "URL of the datastore, such as postgres://user@host/database or sqlite:///path/to/file.db. The default is atoll.db in the data directory. A URL with a password is better given in $"+DatastoreVariable+".")
	flags.StringVar(&cfg.TokenFile, "token-file", "", "File with the token that the servers of one external datastore share. The first server makes one, in the data directory.")
	flags.DurationVar(&cfg.HistoryRetention, "auto-compaction-retention", cfg.HistoryRetention, "How long earlier states of objects can be watched and listed from; history of up to twice that is kept.")
	addMaxChangesFlag(flags, &cfg.HistoryMaxChanges, defaultMaxChanges)
	flags.StringSliceVar(&cfg.Partitions, "partitions", nil, "Resources that get revisions and commits of their own, such as events,leases.coordination.k8s.io: their writes wait for no others. For a new datastore; atoll kv split divides one that is in use.")
	flags.StringVar(&cfg.BindAddress, "bind-address", cfg.BindAddress, "IP address to listen on; 0.0.0.0 or :: for all.")
	flags.IntVar(&cfg.SecurePort, "secure-port", cfg.SecurePort, "Port to serve HTTPS on; 0 for any free one.")
	flags.StringVar(&cfg.MemberAddress, "member-address", "", "IP or IP:PORT by which member clusters reach this server, for APIs that are exposed to them. The default is --bind-address, or this machine's first address if that is 0.0.0.0; a server that listens on the loopback only serves no members without it.")
	flags.IntVar(&cfg.MemberPort, "member-port", cfg.MemberPort, "Port for member clusters; 0 for any free one, -1 to serve none.")
	flags.StringVar(&cfg.Cluster, "cluster", "", "Name of the member cluster that this server runs in, if any: that cluster calls no other server while it has this one.")
	flags.StringSliceVar(&cfg.TLSNames, "tls-name", nil, "Further host names or IPs for the serving certificate.")
	flags.BoolVar(&workloads, "workload-apis", workloads, "Serve the built-in workload kinds (Pods, Services, apps, batch, ...). Without them the API is a pure control plane.")
	flags.StringArrayVar(&cfg.ProviderMirrors, "provider-mirror", nil, "Directory below which Providers may name filesystem mirrors to install from; can be given several times. Without it they name none.")
	flags.BoolVar(&cfg.AllowDevelopmentProviders, "allow-development-providers", false, "Let Providers name programs on this machine (origin.development), which are run without being verified.")
	flags.StringVar(&cfg.ProviderUser, "provider-user", "", "UID:GID of the user that providers run as, in numbers; takes root. The default is the server's own user.")
	flags.StringSliceVar(&cfg.EnableAdmissionPlugins, "enable-admission-plugins", nil, "Admission plugins to run besides those that are on by default, by their Kubernetes names.")
	flags.StringSliceVar(&cfg.DisableAdmissionPlugins, "disable-admission-plugins", nil, "Admission plugins not to run although they are on by default.")
	flags.StringVar(&cfg.EncryptionConfigFile, "encryption-provider-config", "", "File with a Kubernetes EncryptionConfiguration: which resources are stored encrypted.")
	addTracingFlag(flags, &cfg.TracingConfigFile)
	flags.StringVar(&cfg.Audit.PolicyFile, "audit-policy-file", "", "File with a Kubernetes audit Policy: which requests are recorded.")
	flags.StringVar(&cfg.Audit.LogPath, "audit-log-path", "", "File for audit records; - is standard output.")
	flags.IntVar(&cfg.Audit.LogMaxAge, "audit-log-maxage", 0, "Days to keep old audit log files; 0 keeps them.")
	flags.IntVar(&cfg.Audit.LogMaxBackups, "audit-log-maxbackup", 0, "Number of old audit log files to keep; 0 keeps all.")
	flags.IntVar(&cfg.Audit.LogMaxSize, "audit-log-maxsize", 0, "Megabytes after which the audit log file is rotated; 0 is 100.")
	flags.StringVar(&cfg.Audit.WebhookConfigFile, "audit-webhook-config-file", "", "Kubeconfig of a service to send audit records to.")
	flags.IntVarP(&verbosity, "v", "v", verbosity, "Verbosity of the log on standard error: 0 is errors only, 2 is what operators of Kubernetes are used to.")
	return cmd
}

// defaultMaxChanges is some gigabytes of history at the usual sizes of objects, and
// more than most control planes change in ten minutes.
const defaultMaxChanges = 5_000_000

// runServer runs a server until ctx ends. serving is true while it is ready and
// has not been asked to stop.
func runServer(ctx context.Context, cfg server.Config, out io.Writer, serving *atomic.Bool) (err error) {
	start := time.Now()
	memory := &collector{}
	memory.save()
	cfg.LargeWork = memory.spend
	s, err := server.New(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
	}()
	defer context.AfterFunc(ctx, func() { serving.Store(false) })()
	go func() {
		if !awaitReady(ctx, s, out) {
			return
		}
		serving.Store(ctx.Err() == nil)
		fmt.Fprintf(out, "Atoll serves %s (ready after %.1f s). Try:\n\n  kubectl --kubeconfig %s get namespaces\n\n",
			s.URL(), time.Since(start).Seconds(), relative(s.Kubeconfig()))
		giveBackMemory(ctx)
	}()
	return s.Run(ctx)
}

// awaitReady tells whether the server became ready before ctx ended, and says
// how to find out why if that takes long.
func awaitReady(ctx context.Context, s *server.Server, out io.Writer) bool {
	const long = 20 * time.Second
	slow := time.NewTimer(long)
	defer slow.Stop()
	for {
		select {
		case <-s.Ready():
			return true
		case <-slow.C:
			fmt.Fprintf(out, "Atoll is not ready after %v. To see what it waits for, ask %s/readyz?verbose or run it with -v 2.\n", long, s.URL())
		case <-ctx.Done():
			return false
		}
	}
}

// collector sets how eagerly garbage is collected: before the heap has doubled. What an API server
// holds it holds for long (caches): measured while 10,000 objects are created,
// it then takes 12 % less memory for 5 % more processor time. A large plan makes garbage by
// the gigabyte, and nothing of it stays: meanwhile the heap may grow to two and a half times of what
// is in use, which saves a tenth of the time. An apply leaves states all over the heap, the larger that grows the more of it cannot
// be given back. GOGC in the environment has the last word. The setting is the whole
// process's, which is why the command makes it: a server that is built into another program
// leaves it alone.
type collector struct {
	mu    sync.Mutex
	large int // how much is under way that is large
}

const eager, lavish = 65, 150 // by how many percent the heap grows in between

func (c *collector) save() { c.set(eager) }

func (c *collector) set(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// spend is for while something large is under way.
func (c *collector) spend(stays bool) (over func()) {
	if stays {
		return debug.FreeOSMemory
	}
	c.add(1)
	return func() {
		c.add(-1)
		debug.FreeOSMemory()
	}
}

func (c *collector) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.large += n
	if c.large > 0 {
		c.set(lavish)
	} else {
		c.set(eager)
	}
}

// giveBackMemory returns the garbage of the start to the system, once all is
// running: it is half of what the process holds, and an idle control plane makes
// too little garbage of its own for the collector to come round.
func giveBackMemory(ctx context.Context) {
	const settled = 10 * time.Second
	select {
	case <-time.After(settled):
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
}

// defaultDataDir is the place for a user's own state; the system's for root.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/atoll"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "atoll")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "atoll"
	}
	return filepath.Join(home, ".local", "share", "atoll")
}

// relative shortens a path for the eye where that leads to the same file.
func relative(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && len(rel) < len(path) {
		return rel
	}
	return path
}
