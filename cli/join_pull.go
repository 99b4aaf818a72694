package cli

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
	"github.com/atoll-dev/atoll/fleet/view"
)

// Modes in which a cluster joins.
const (
	modePush = "push"
	modePull = "pull"
)

// syncerManifest runs a syncer in its own cluster.
//
//go:embed syncer.yaml
var syncerManifest string

// pull has the options of `atoll join --mode pull`.
type pull struct {
	server, file, image string
	roles               syncerRoles
	bootstrap           bool
	tokenTTL            time.Duration
}

func (p *pull) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.server, "server", "", "URL of Atoll for the cluster's syncer, such as https://atoll.example.com:6443. The default is the URL that this command uses. (--mode pull)")
	flags.StringVar(&p.file, "view-kubeconfig", "", "File to write the view's kubeconfig to, for a syncer that runs elsewhere, instead of printing manifests for the cluster. (--mode pull)")
	flags.StringVar(&p.image, "image", "atoll", "Image of Atoll in the manifests. (--mode pull)")
	flags.BoolVar(&p.bootstrap, "bootstrap", false, "Print a bootstrap token instead of a credential. The syncer makes its own key and requests a certificate, and a user of the fleet approves that with kubectl certificate approve. (--mode pull)")
	flags.DurationVar(&p.tokenTTL, "token-ttl", 24*time.Hour, "How long the bootstrap token is valid. (--bootstrap)")
	p.roles.addFlags(flags)
}

// join registers a cluster in mode Pull and outputs its syncer's credential.
func (p *pull) join(ctx context.Context, cmd *cobra.Command, config *rest.Config, name string, adopt, acceptRights bool) error {
	if cmd.Flags().Changed("token-ttl") && !p.bootstrap {
		return errors.New("--token-ttl needs --bootstrap: without it, there is no token")
	}
	if err := p.check(ctx, config); err != nil {
		return err
	}
	kubeconfig, err := p.credential(ctx, cmd, config, name, adopt, acceptRights)
	if err != nil {
		return err
	}
	if p.file != "" {
		if err := replaceFile(p.file, kubeconfig); err != nil {
			return fmt.Errorf("write the kubeconfig of the view: %w", err)
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "wrote %s, which is a secret. Now run, with a kubeconfig for the cluster:\n\n  atoll syncer --view-kubeconfig %s --kubeconfig FILE --reach %s\n\n", p.file, p.file, p.roles.reach.Level)
		p.printApproval(cmd)
		return nil
	}
	if err := p.print(cmd, kubeconfig); err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "apply the printed manifests to cluster %s. They contain a secret: do not commit them to a repository\n", name)
	p.printApproval(cmd)
	return nil
}

// credential registers the cluster and returns its syncer's kubeconfig for the view, or one with a bootstrap token.
func (p *pull) credential(ctx context.Context, cmd *cobra.Command, config *rest.Config, name string, adopt, acceptRights bool) ([]byte, error) {
	if !p.bootstrap {
		if err := join.Pull(ctx, config, name, adopt, acceptRights, progress(cmd)); err != nil {
			return nil, err
		}
		return view.RequestKubeconfig(ctx, config, name, p.server)
	}
	if adopt {
		return nil, fmt.Errorf("--adopt cannot be used with --bootstrap: when %s has joined, run `kubectl annotate cluster %[1]s %s=true`", name, v1alpha1.AdoptAnnotation)
	}
	token, err := join.Bootstrap(ctx, config, name, p.tokenTTL, acceptRights, progress(cmd))
	if err != nil {
		return nil, err
	}
	return view.BootstrapKubeconfig(config, name, p.server, token)
}

// printApproval prints what lets a syncer with a bootstrap token join.
func (p *pull) printApproval(cmd *cobra.Command) {
	if p.bootstrap {
		fmt.Fprint(cmd.ErrOrStderr(), "the syncer then requests a certificate. Compare the name of the request with the syncer's log, and approve it:\n\n  kubectl get csr\n  kubectl certificate approve NAME\n\n")
	}
}

// print prints the manifests for the cluster, without a syncer if there is no kubeconfig for it.
func (p *pull) print(cmd *cobra.Command, kubeconfig []byte) error {
	manifest, err := p.roles.manifest()
	if err != nil {
		return err
	}
	if kubeconfig != nil {
		manifest += "---\n" + p.manifest(kubeconfig)
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), manifest)
	return err
}

func (p *pull) check(ctx context.Context, config *rest.Config) error {
	if p.server == "" {
		u, err := url.Parse(config.Host)
		if err == nil && net.ParseIP(u.Hostname()).IsLoopback() && p.file == "" {
			return fmt.Errorf("this command reaches Atoll at the loopback address %s, which the cluster cannot use: set --server to the URL of Atoll for the cluster's syncer", config.Host)
		}
		return nil
	}
	u, err := url.Parse(p.server)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("server %q is not an HTTPS URL: use a form such as https://atoll.example.com:6443", p.server)
	}
	return checkServerName(ctx, config, u)
}

// checkServerName refuses an address that the certificate of Atoll's servers is not valid for: the
// cluster's syncer could never connect. It says nothing if the certificate cannot be read.
func checkServerName(ctx context.Context, config *rest.Config, server *url.URL) error {
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil || tlsConfig == nil {
		return nil // the next request has the cause
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	connect := func(u *url.URL) (*x509.Certificate, error) {
		address := u.Host
		if u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), "443")
		}
		c, err := (&tls.Dialer{Config: tlsConfig}).DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return c.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
	}
	here, err := url.Parse(config.Host)
	if err != nil {
		return nil
	}
	certificate, err := connect(here)
	if err != nil || certificate.VerifyHostname(server.Hostname()) == nil {
		return nil
	}
	if _, err := connect(server); err == nil {
		return nil // another certificate of the same authority
	}
	valid := slices.Clone(certificate.DNSNames)
	for _, ip := range certificate.IPAddresses {
		valid = append(valid, ip.String())
	}
	return fmt.Errorf("the certificate of Atoll's servers is not valid for %s, so the cluster's syncer could not connect: start the servers with --tls-name %[1]s, or use one of its names in --server (%s)",
		server.Hostname(), strings.Join(valid, ", "))
}

func (p *pull) manifest(kubeconfig []byte) string {
	digest := sha256.Sum256(kubeconfig)
	return strings.NewReplacer("$KUBECONFIG", base64.StdEncoding.EncodeToString(kubeconfig), "$IMAGE", p.image, "$REACH", p.roles.reach.String(),
		"$DIGEST", hex.EncodeToString(digest[:8])).Replace(syncerManifest)
}

// checkMode rejects flags that do not apply to the mode.
func checkMode(cmd *cobra.Command, mode string) error {
	only := map[string][]string{modePull: {"kubeconfig", "context"}, modePush: {"server", "view-kubeconfig", "image", "allow", "allow-rbac", "roles-only", "reach", "bootstrap", "token-ttl"}}
	others, known := only[mode]
	if !known {
		return fmt.Errorf("invalid --mode %q: must be %s or %s", mode, modePush, modePull)
	}
	for _, flag := range others {
		if cmd.Flags().Changed(flag) {
			return fmt.Errorf("--%s cannot be used with --mode %s", flag, mode)
		}
	}
	return nil
}

// errNoKubeconfig is returned if join cannot know which cluster is meant.
var errNoKubeconfig = errors.New("no kubeconfig for the cluster: set --kubeconfig")
