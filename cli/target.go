package cli

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// target selects the Atoll that a command connects to. Its flags have a prefix in `atoll
// join` and `atoll leave`, because --kubeconfig and --context mean the member cluster there.
// plain is set for all other commands, which have kubectl's flags.
type target struct {
	kubeconfig, context string
	// workspace is the path of a workspace instead of that of the context.
	workspace string
	plain     bool
	// The user that requests are made as, by impersonation.
	as, asUID string
	asGroups  []string
}

func (t *target) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&t.kubeconfig, "atoll-kubeconfig", "", "Kubeconfig for Atoll. The default is kubectl's: $KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.context, "atoll-context", "", "Context in that kubeconfig. The default is the current context.")
	flags.StringVarP(&t.workspace, workspaceFlag, "w", "", "Path of the workspace, such as team-a or team-a:staging; root is the server's own API. Commands that only read accept all workspaces of a tree, too: '*', or 'team-a:*'. The default is that of the context.")
	flags.StringVar(&t.as, "as", "", "Username to impersonate in Atoll: a user, or a service account as system:serviceaccount:NAMESPACE:NAME.")
	flags.StringArrayVar(&t.asGroups, "as-group", nil, "Group to impersonate in Atoll. Can be repeated.")
	flags.StringVar(&t.asUID, "as-uid", "", "UID to impersonate in Atoll.")
}

// text returns the flags for the same target, for use in another command.
func (t *target) text() string {
	var out strings.Builder
	add := func(name, value string) {
		if value != "" {
			out.WriteString(" --" + name + " " + shellWord(value))
		}
	}
	add("kubeconfig", t.kubeconfig)
	add("context", t.context)
	add("workspace", t.workspace)
	add("as", t.as)
	for _, group := range t.asGroups {
		add("as-group", group)
	}
	add("as-uid", t.asUID)
	return out.String()
}

// addPlainFlags adds the flags without the prefix, and hidden flags with it for
// compatibility.
func (t *target) addPlainFlags(flags *pflag.FlagSet) {
	t.plain = true
	flags.StringVar(&t.kubeconfig, "kubeconfig", "", "Kubeconfig for Atoll. The default is kubectl's: $KUBECONFIG, or ~/.kube/config.")
	flags.StringVar(&t.context, "context", "", "Context in that kubeconfig. The default is the current context.")
	t.addFlags(flags)
	flags.Lookup("atoll-kubeconfig").Hidden = true
	flags.Lookup("atoll-context").Hidden = true
}

func (t *target) loading() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: t.context,
		AuthInfo: clientcmdapi.AuthInfo{Impersonate: t.as, ImpersonateGroups: t.asGroups, ImpersonateUID: t.asUID}})
}

// namespace returns the namespace of a flag, or else the one of the kubeconfig's context, as
// in kubectl.
func (t *target) namespace(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	namespace, _, err := t.loading().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return metav1.NamespaceDefault, nil // config returns the error
	}
	if err != nil {
		return "", fmt.Errorf("read the namespace of the kubeconfig's context: %w: set one with -n", err)
	}
	return namespace, nil
}

func (t *target) config() (*rest.Config, error) {
	prefix := "--atoll-"
	if t.plain {
		prefix = "--"
	}
	if t.as == "" && (len(t.asGroups) > 0 || t.asUID != "") {
		return nil, errors.New("--as-group and --as-uid need a user: set --as, too")
	}
	config, err := t.loading().ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		if missing := missingKubeconfigs(); len(missing) > 0 {
			return nil, fmt.Errorf("no kubeconfig for Atoll: KUBECONFIG contains %s, which cannot be read. Correct it, or set %skubeconfig to a server's admin.kubeconfig",
				strings.Join(missing, " and "), prefix)
		}
		return nil, fmt.Errorf("no kubeconfig for Atoll: set %skubeconfig or KUBECONFIG to a server's admin.kubeconfig", prefix)
	case err != nil:
		return nil, fmt.Errorf("load the kubeconfig for Atoll: %w: set %skubeconfig to a server's admin.kubeconfig, and %scontext to a context in it", err, prefix, prefix)
	}
	if t.workspace != "" {
		root, current := splitWorkspaceURL(config.Host)
		path, err := readablePath(current, t.workspace)
		if err != nil {
			return nil, fmt.Errorf("--workspace: %w", err)
		}
		config.Host = workspaceURL(root, path)
	}
	if _, path := splitWorkspaceURL(config.Host); path != "" {
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return explainRootOnly{rt, path} })
	}
	config.UserAgent = "atoll"
	// As kubectl shows them.
	config.WarningHandler = rest.NewWarningWriter(os.Stderr, rest.WarningWriterOptions{Deduplicate: true})
	return config, nil
}

// quietConfig is config without the API server's warnings. They are about the objects that a
// command makes for itself, and tell its user nothing.
func (t *target) quietConfig() (*rest.Config, error) {
	config, err := t.config()
	if err == nil {
		config.WarningHandler = rest.NoWarnings{}
	}
	return config, err
}

// missingKubeconfigs returns the files in KUBECONFIG that do not exist. Like kubectl,
// loading ignores those.
func missingKubeconfigs() []string {
	var out []string
	for _, file := range filepath.SplitList(os.Getenv(clientcmd.RecommendedConfigPathEnvVar)) {
		if _, err := os.Stat(file); file != "" && err != nil {
			out = append(out, file)
		}
	}
	return out
}
