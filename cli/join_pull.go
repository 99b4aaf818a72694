package cli

import (
	"context"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/fleet/view"
)

// The modes in which a cluster joins.
const (
	modePush = "push"
	modePull = "pull"
)

// syncerManifest is what runs a syncer in its own cluster.
//
//go:embed syncer.yaml
var syncerManifest string

// pull is what `atoll join --mode pull` has been told.
type pull struct {
	server, file, image string
}

func (p *pull) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.server, "server", "", "URL by which the cluster's syncer reaches Atoll, such as https://atoll.example.com:6443. The default is the one by which this command does. (--mode pull)")
	flags.StringVar(&p.file, "view-kubeconfig", "", "File to write the kubeconfig of the cluster's view to, for a syncer that runs elsewhere, instead of printing manifests for the cluster. (--mode pull)")
	flags.StringVar(&p.image, "image", "atoll", "Image of Atoll in the manifests. (--mode pull)")
}

// join registers a cluster in mode Pull and hands out what its syncer needs.
func (p *pull) join(ctx context.Context, cmd *cobra.Command, config *rest.Config, name string) error {
	if err := p.check(config); err != nil {
		return err
	}
	kubeconfig, err := view.Join(ctx, config, view.JoinOptions{Name: name, Server: p.server, Progress: progress(cmd)})
	if err != nil {
		return err
	}
	if p.file != "" {
		if err := replaceFile(p.file, kubeconfig); err != nil {
			return fmt.Errorf("write the kubeconfig of the view: %w", err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s, which is secret; now run, with a kubeconfig that leads to the cluster:\n\n  atoll syncer --view-kubeconfig %s --kubeconfig FILE\n\n", p.file, p.file)
		return nil
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), p.manifest(kubeconfig))
	if err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "apply what was printed to the cluster %s; it holds a secret, so it belongs in no repository\n", name)
	}
	return err
}

func (p *pull) check(config *rest.Config) error {
	if p.server == "" {
		u, err := url.Parse(config.Host)
		if err == nil && net.ParseIP(u.Hostname()).IsLoopback() && p.file == "" {
			return fmt.Errorf("this command reaches Atoll at %s, which leads the cluster to itself: say with --server how the cluster's syncer reaches Atoll", config.Host)
		}
		return nil
	}
	if u, err := url.Parse(p.server); err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server %q is not a URL by which a server of Atoll can be reached: give one like https://atoll.example.com:6443", p.server)
	}
	return nil
}

func (p *pull) manifest(kubeconfig []byte) string {
	return strings.NewReplacer("$KUBECONFIG", base64.StdEncoding.EncodeToString(kubeconfig), "$IMAGE", p.image).Replace(syncerManifest)
}

// checkMode makes sure that flags and mode belong together.
func checkMode(cmd *cobra.Command, mode string) error {
	only := map[string][]string{modePull: {"kubeconfig", "context"}, modePush: {"server", "view-kubeconfig", "image"}}
	others, known := only[mode]
	if !known {
		return fmt.Errorf("unknown --mode %q: it takes %s or %s", mode, modePush, modePull)
	}
	for _, flag := range others {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s has no use with --mode %s: leave it out", flag, mode)
		}
	}
	return nil
}

// errNoKubeconfig: join cannot know which cluster.
var errNoKubeconfig = errors.New("no kubeconfig given: name the one that leads to the cluster with --kubeconfig")
