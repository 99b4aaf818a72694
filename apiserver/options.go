package apiserver

import (
	"context"
	"fmt"
	"net"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericfeatures "k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

const (
	// watchGrace is how long watches may take to end when the server stops. Upstream's
	// 0 would not ask them to end, and then wait a minute for them.
	watchGrace = 5 * time.Second
	// shutdownTimeout limits the wait for connections after that.
	shutdownTimeout = 10 * time.Second
)

// upstreamOptions translates Config to the options that kube-apiserver's flags would
// set. lost reports whether the datastore is known to be unreachable.
func upstreamOptions(ctx context.Context, cfg Config, tokens *boundObjects, lost func() bool) (options.CompletedOptions, error) {
	if err := setProcessWide(cfg); err != nil {
		return options.CompletedOptions{}, err
	}
	o := options.NewOptions()
	registry, err := ComponentVersions()
	if err != nil {
		return options.CompletedOptions{}, err
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = registry

	// Set, so that upstream does not look for a default route.
	o.GenericServerRunOptions.AdvertiseAddress = cfg.AdvertiseAddress
	o.GenericServerRunOptions.ExternalHost = cfg.AdvertiseAddress.String()
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchGrace
	o.SecureServing.Listener = cfg.Listener
	if addr, ok := cfg.Listener.Addr().(*net.TCPAddr); ok {
		o.SecureServing.BindAddress, o.SecureServing.BindPort = addr.IP, addr.Port
	}
	o.SecureServing.ServerCert.CertKey.CertFile = cfg.TLS.CertFile
	o.SecureServing.ServerCert.CertKey.KeyFile = cfg.TLS.KeyFile

	// Nothing dials this address: keyspaceStorage replaces the storage of every
	// resource, and its own health check replaces upstream's. Validation requires an
	// address.
	o.Etcd.StorageConfig.Transport.ServerList = []string{"in-process"}
	o.Etcd.SkipHealthEndpoints = true
	// Upstream would load the EncryptionConfiguration here, and without the health endpoints of etcd, it
	// would leave out those of the KMS. See encryption.configure.

	o.Authentication.ClientCert.ClientCA = cfg.TLS.ClientCAFile
	o.Authentication.Anonymous.Allow = false // see allowAnonymousHealth
	o.Authentication.BootstrapToken.Enable = true
	o.Authentication.ServiceAccounts.KeyFiles = []string{cfg.ServiceAccountKeyFile}
	o.Authentication.ServiceAccounts.Issuers = []string{issuer(cfg.Workspace)}
	o.Authentication.ServiceAccounts.OptionalTokenGetter = tokens.cached
	o.ServiceAccountSigningKeyFile = cfg.ServiceAccountKeyFile
	// Upstream would issue a token for a year to a client that asks for the time that kubelets ask for.
	o.Authentication.ServiceAccounts.ExtendExpiration = false
	o.Authentication.ServiceAccounts.MaxExpiration = cfg.MaxTokenAge
	o.Authentication.AuthenticationConfigFile = cfg.AuthenticationConfigFile
	o.Authorization.Modes = []string{modes.ModeRBAC}
	if cfg.AuthorizationConfigFile != "" {
		o.Authorization.Modes, o.Authorization.AuthorizationConfigurationFile = nil, cfg.AuthorizationConfigFile
	}

	o.Admission.GenericAdmission.DefaultOffPlugins = disabledPlugins(cfg.WorkloadAPIs)
	o.Admission.GenericAdmission.EnablePlugins = cfg.EnableAdmissionPlugins
	o.Admission.GenericAdmission.DisablePlugins = cfg.DisableAdmissionPlugins
	withNamespaces(o.Admission, cfg, lost)
	withServiceWarnings(o.Admission)
	withUserWarning(o.Admission, cfg.Warning)
	if err := withWriteCheck(o.Admission, cfg.WriteCheck); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withTopLevelItems(o.Admission); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withUnowned(o.Admission, cfg.Unowned); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withDeletionProtection(o.Admission, cfg.DeletionProtection); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withNamespaceKeeper(o.Admission, cfg.KeepNamespace); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withSigners(o.Admission, cfg.OnlySigners); err != nil {
		return options.CompletedOptions{}, err
	}
	if err := withSteps(o.Admission, cfg.Admission); err != nil {
		return options.CompletedOptions{}, err
	}

	withLabelObserver(o.Admission, cfg.ObserveLabel)

	// Its flags select metrics to hide; applying none logs an error.
	o.Metrics = nil

	o.Audit.PolicyFile = cfg.Audit.PolicyFile
	o.Audit.LogOptions.Path = cfg.Audit.LogPath
	o.Audit.LogOptions.MaxAge = cfg.Audit.LogMaxAge
	o.Audit.LogOptions.MaxBackups = cfg.Audit.LogMaxBackups
	o.Audit.LogOptions.MaxSize = cfg.Audit.LogMaxSize
	o.Audit.WebhookOptions.ConfigFile = cfg.Audit.WebhookConfigFile

	completed, err := o.Complete(ctx, nil, nil)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return options.CompletedOptions{}, utilerrors.NewAggregate(errs)
	}
	return completed, nil
}

// issuer returns the issuer of the workspace's service-account tokens. It ends in
// .internal because no client resolves it. It only has to differ between workspaces, so
// that a token of one is invalid in every other.
func issuer(workspace string) string {
	return "https://" + workspace + ".atoll.internal"
}

// setProcessWide sets the two switches that upstream keeps per process and that have
// only one correct value here. Setting them again is harmless.
func setProcessWide(cfg Config) error {
	// Kubernetes 1.36 proxies requests between servers of different versions. To find
	// them it writes leases through an etcd connection that it dials itself. There is
	// no etcd to dial.
	err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		string(genericfeatures.UnknownVersionInteroperabilityProxy): false,
	})
	if err != nil {
		return fmt.Errorf("disable upstream's interoperability proxy: %w", err)
	}
	if cfg.WorkloadAPIs {
		// The member clusters decide whether a privileged container may run. Upstream's
		// default here would refuse to store one.
		capabilities.Setup(true, 0)
	}
	return nil
}
