package member

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/atoll-dev/atoll/playground/keys"

	"github.com/atoll-dev/atoll/apiserver"
)

// listen opens the port that an earlier run wrote to file, so that kubeconfigs stay valid. If there
// is none or it is in use, it opens a free port.
func listen(address, file string) (net.Listener, error) {
	port := 0
	if raw, err := os.ReadFile(file); err == nil {
		port, _ = strconv.Atoi(strings.TrimSpace(string(raw)))
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil && port != 0 {
		listener, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("open a port for the API server: %w", err)
	}
	port = listener.Addr().(*net.TCPAddr).Port
	if err := os.WriteFile(file, []byte(strconv.Itoa(port)+"\n"), 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("write the port of the API server: %w", err)
	}
	return listener, nil
}

func runAPIServer(ctx context.Context, cfg Config, files *keys.Keys, listener net.Listener) error {
	port := listener.Addr().(*net.TCPAddr).Port
	o := options.NewServerRunOptions()
	registry, err := apiserver.ComponentVersions()
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = registry
	err = parse(o.Flags(), []string{
		"--bind-address=" + cfg.Address,
		"--secure-port=" + strconv.Itoa(port),
		// The API server must have an address that is not loopback for the endpoints of the
		// Service "kubernetes". It does not write them, because no program runs in Pods here that
		// could connect to it.
		"--advertise-address=192.0.2.1",
		"--endpoint-reconciler-type=none",
		"--etcd-servers=" + cfg.Store,
		"--tls-cert-file=" + files.ServerCert,
		"--tls-private-key-file=" + files.ServerKey,
		"--cert-dir=" + filepath.Dir(files.ServerCert),
		"--client-ca-file=" + files.CACert,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + files.ServiceAccountKey,
		"--service-account-signing-key-file=" + files.ServiceAccountKey,
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		// Installers of clusters set this: agents on nodes and drivers need it. Pod Security
		// decides which Pods may use it.
		"--allow-privileged=true",
		// Aggregated servers take the user from these headers. They read their names from the
		// ConfigMap kube-system/extension-apiserver-authentication.
		"--requestheader-client-ca-file=" + files.FrontProxyCACert,
		"--requestheader-allowed-names=" + keys.FrontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + files.FrontProxyCert,
		"--proxy-client-key-file=" + files.FrontProxyKey,
		// How it authenticates to kubelets, and they to it.
		"--kubelet-client-certificate=" + files.AdminCert,
		"--kubelet-client-key=" + files.AdminKey,
		"--kubelet-certificate-authority=" + files.CACert,
		"--kubelet-preferred-address-types=InternalIP",
		// There is no kube-proxy, so cluster IPs do not work. The API server connects to the
		// endpoints of a Service instead.
		"--enable-aggregator-routing=true",
		"--profiling=false",
		"--event-ttl=15m",
	})
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	o.SecureServing.Listener = listener
	if err := registry.Set(); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	completed, err := o.Complete(ctx)
	if err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return fmt.Errorf("kube-apiserver: %w", utilerrors.NewAggregate(errs))
	}
	if err := app.Run(ctx, completed); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	return ctx.Err()
}

// parse sets options like the component's command line.
func parse(sets cliflag.NamedFlagSets, args []string) error {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	return flags.Parse(args)
}
