package main

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	cliflag "k8s.io/component-base/cli/flag"
	generic "k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"

	"github.com/atoll-dev/atoll/playground/child"
	"github.com/atoll-dev/atoll/playground/keys"
)

const upstreamRole = "upstream-generic-control-plane"

// runUpstream serves upstream's sample of a generic control plane over etcd. Our API
// server is built from the same packages.
func runUpstream(ctx context.Context, link *child.Link) error {
	var cfg serverConfig
	if err := link.Config(&cfg); err != nil {
		return err
	}
	files, err := keys.LoadOrMake(filepath.Join(cfg.Dir, "pki"), "upstream")
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(cfg.Dir, "admin.kubeconfig")
	if err := files.WriteKubeconfig(kubeconfig, "upstream", "https://"+listener.Addr().String()); err != nil {
		return err
	}

	o := generic.NewOptions()
	var sets cliflag.NamedFlagSets
	o.AddFlags(&sets)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		flags.AddFlagSet(set)
	}
	err = flags.Parse([]string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(listener.Addr().(*net.TCPAddr).Port),
		"--advertise-address=192.0.2.1", // never used; the default would be detected from the network
		"--etcd-servers=" + cfg.Store,
		"--tls-cert-file=" + files.ServerCert,
		"--tls-private-key-file=" + files.ServerKey,
		"--cert-dir=" + cfg.Dir,
		"--client-ca-file=" + files.CACert,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + files.ServiceAccountKey,
		"--service-account-signing-key-file=" + files.ServiceAccountKey,
		"--authorization-mode=RBAC",
		"--profiling=false",
	})
	if err != nil {
		return fmt.Errorf("upstream's generic control plane: %w", err)
	}
	o.SecureServing.Listener = listener
	completed, err := o.Complete(ctx, nil, nil)
	if err != nil {
		return fmt.Errorf("upstream's generic control plane: %w", err)
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return fmt.Errorf("upstream's generic control plane: %w", utilerrors.NewAggregate(errs))
	}
	if err := link.Ready(serverReady{Kubeconfig: kubeconfig}); err != nil {
		return err
	}
	return generic.Run(ctx, completed)
}
