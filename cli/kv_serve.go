package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/atoll-dev/atoll/kv/etcd"
	"github.com/atoll-dev/atoll/kv/mvcc"
	"github.com/atoll-dev/atoll/server"
)

// minProgressInterval keeps idle watches from costing as much as busy ones.
const minProgressInterval = 100 * time.Millisecond

func newKVServeCommand() *cobra.Command {
	cfg := etcd.ServeConfig{Name: server.Workspace, Listen: []string{"127.0.0.1:2379"}}
	var datastore string
	var retention retentionFlags
	var tracingFile string
	var progress time.Duration
	var maxLeases int
	cmd := &cobra.Command{
		Use:   "serve --datastore URL",
		Short: "Serve a keyspace to etcd clients",
		Long: `Serve one keyspace to etcd clients, over etcd's own v3 protocol (gRPC).

Without a certificate it serves plaintext, and only on loopback addresses.`,
		Example: `  # To clients on this machine
  atoll kv serve --datastore sqlite:///tmp/kv.db --listen 127.0.0.1:2379
  etcdctl --endpoints 127.0.0.1:2379 put greeting hello`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			datastore, err := datastoreURL(datastore)
			if err != nil {
				return err
			}
			keep, err := retention.parse()
			if err != nil {
				return err
			}
			if cfg.ClientAccessFile != "" && cfg.ClientCAFile == "" {
				return errors.New("--client-access needs the certificates of clients: set --client-ca-file, too")
			}
			if cfg.QuotaBytes < 0 {
				return fmt.Errorf("--quota-backend-bytes %d is negative: specify a number of bytes, or 0 for no quota", cfg.QuotaBytes)
			}
			if err := checkKVBounds(cmd.Flags()); err != nil {
				return err
			}
			if progress < minProgressInterval {
				return fmt.Errorf("--watch-progress-notify-interval %s is too short: use %s or more", progress, minProgressInterval)
			}
			options := mvcc.Options{Retention: keep, ProgressInterval: progress, MaxLeases: maxLeases}
			return serveKeyspace(cmd.Context(), datastore, cfg, options, tracingFile, cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	addDatastoreFlag(flags, &datastore)
	flags.StringVar(&cfg.Name, "keyspace", cfg.Name, "Name of the keyspace to serve; it is created if it does not exist.")
	flags.StringSliceVar(&cfg.Listen, "listen", cfg.Listen, "Addresses to serve on: host:port, or unix:path.")
	flags.StringVar(&cfg.CertFile, "cert-file", "", "The server's certificate; enables TLS.")
	flags.StringVar(&cfg.KeyFile, "key-file", "", "Key of the server's certificate.")
	flags.StringVar(&cfg.ClientCAFile, "client-ca-file", "", "Certificate authority that must have signed clients' certificates.")
	flags.StringVar(&cfg.ClientAccessFile, "client-access", "", "File (YAML) with the prefixes and rights of clients, by the common names of their certificates. The default is that every client has all rights.")
	flags.StringSliceVar(&cfg.ClientURLs, "advertise-client-urls", nil, "URLs to advertise to clients. The default is the listen addresses.")
	retention.addFlags(flags)
	flags.Int64Var(&cfg.QuotaBytes, "quota-backend-bytes", 0, "Bound on the part of the database that holds data, in bytes. Beyond it the alarm NOSPACE refuses puts and leases until it is disarmed. 0 is no bound, unlike in etcd.")
	flags.Int64Var(&cfg.MaxResponseBytes, "max-response-bytes", etcd.DefaultMaxResponseBytes, "Maximum size of the keys and values in one answer, in bytes. A client that reads more has to read it in pages.")
	flags.IntVar(&cfg.MaxWatchesPerConnection, "max-watches-per-connection", etcd.DefaultMaxWatchesPerConnection, "Maximum number of watches on one connection.")
	flags.IntVar(&cfg.MaxWatches, "max-watches", etcd.DefaultMaxWatches, "Maximum number of watches on all connections together.")
	flags.IntVar(&maxLeases, "max-leases", etcd.DefaultMaxLeases, "Maximum number of leases of the keyspace.")
	flags.Uint32Var(&cfg.MaxConcurrentStreams, "max-concurrent-streams", math.MaxUint32, "Maximum number of calls at the same time on one connection; a stream of watches is one call. Others wait.")
	flags.DurationVar(&progress, "watch-progress-notify-interval", 10*time.Minute, "How often a watch that requested progress notifications and has no events gets one.")
	addTracingFlag(flags, &tracingFile)
	flags.StringVar(&cfg.MetricsListen, "metrics-listen", "", "Address for Prometheus metrics and health over HTTP.")
	return cmd
}

// checkKVBounds refuses bounds that would refuse everything.
func checkKVBounds(flags *pflag.FlagSet) (err error) {
	for _, name := range []string{"max-response-bytes", "max-watches-per-connection", "max-watches", "max-leases", "max-concurrent-streams"} {
		if value := flags.Lookup(name).Value.String(); value == "0" || strings.HasPrefix(value, "-") {
			err = errors.Join(err, fmt.Errorf("--%s %s permits nothing: specify a number above 0", name, value))
		}
	}
	return err
}

func serveKeyspace(ctx context.Context, datastore string, cfg etcd.ServeConfig, options mvcc.Options, tracingFile string, out io.Writer) (err error) {
	db, err := server.OpenDatastore(ctx, datastore)
	if err != nil {
		return err
	}
	defer func() { err = first(err, db.Close()) }()
	if err := db.CheckComplete(ctx, cfg.Name); err != nil {
		return err
	}
	if tracingFile != "" {
		tracing, closer, err := server.OpenTracing(ctx, tracingFile, "atoll-kv")
		if err != nil {
			return err
		}
		defer closer.Close()
		options.TracerProvider, cfg.TracerProvider = tracing, tracing
	}
	metrics := etcd.NewEngineMetrics()
	options.Observer = server.LogBehind(metrics.Observer(), cfg.Name)
	keyspace, err := db.Keyspace(ctx, cfg.Name, options)
	if err != nil {
		return err
	}
	defer func() { err = first(err, keyspace.Close()) }()

	cfg.Keyspace = keyspace
	cfg.OnAccess = func(err error) {
		if err != nil {
			klog.ErrorS(err, "The file of --client-access is not valid: the former rules stay in effect")
			return
		}
		klog.InfoS("The rules of --client-access have changed and are in effect", "file", cfg.ClientAccessFile)
	}
	// A client that repeats refused calls must not fill the log.
	refusals := rate.NewLimiter(rate.Every(time.Second), 10)
	cfg.OnRefuse = func(commonName, method, reason string) {
		if refusals.Allow() {
			klog.InfoS("A call of a client was refused", "commonName", commonName, "method", method, "reason", reason)
		}
	}
	cfg.OnAlarm = func(raised bool, inUse, quota int64) {
		if raised {
			klog.InfoS("The alarm NOSPACE was raised: puts and leases are refused until it is disarmed", "keyspace", cfg.Name, "bytesInUse", inUse, "quota", quota)
			return
		}
		klog.InfoS("The alarm NOSPACE was disarmed", "keyspace", cfg.Name)
	}
	cfg.Started = func(s *etcd.Server) { s.Registry().MustRegister(metrics) }
	cfg.Ready = func(addrs []net.Addr) {
		for i, addr := range addrs {
			what := "etcd clients"
			if i >= len(cfg.Listen) {
				what = "metrics"
			}
			fmt.Fprintf(out, "Keyspace %q serves %s on %s\n", cfg.Name, what, addr)
		}
	}
	return etcd.ListenAndServe(ctx, cfg)
}

// first returns the error that explains the others.
func first(err, later error) error {
	if err != nil {
		return err
	}
	return later
}
