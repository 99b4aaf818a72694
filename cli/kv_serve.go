package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
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
			if cfg.QuotaBytes < 0 {
				return fmt.Errorf("--quota-backend-bytes %d is negative: specify a number of bytes, or 0 for no quota", cfg.QuotaBytes)
			}
			if progress < minProgressInterval {
				return fmt.Errorf("--watch-progress-notify-interval %s is too short: use %s or more", progress, minProgressInterval)
			}
			options := mvcc.Options{Retention: keep, ProgressInterval: progress}
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
	flags.StringSliceVar(&cfg.ClientURLs, "advertise-client-urls", nil, "URLs to advertise to clients. The default is the listen addresses.")
	retention.addFlags(flags)
	flags.Int64Var(&cfg.QuotaBytes, "quota-backend-bytes", 0, "Bound on the part of the database that holds data, in bytes. Beyond it the alarm NOSPACE refuses puts and leases until it is disarmed. 0 is no bound, unlike in etcd.")
	flags.DurationVar(&progress, "watch-progress-notify-interval", 10*time.Minute, "How often a watch that requested progress notifications and has no events gets one.")
	addTracingFlag(flags, &tracingFile)
	flags.StringVar(&cfg.MetricsListen, "metrics-listen", "", "Address for Prometheus metrics and health over HTTP.")
	return cmd
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
