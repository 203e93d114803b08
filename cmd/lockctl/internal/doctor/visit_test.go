package doctor

import (
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/natslock/locks/internal/kvstore"
)

// TestCertificates checks that the doctor warns before a server certificate expires, and reports an
// expired one as an error of that server, whether the doctor sees it or its TLS handshake fails.
func TestCertificates(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for left, status := range map[time.Duration]string{
		-time.Second: checkError, 0: checkError, time.Second: checkWarning, certificateWarning - 1: checkWarning, certificateWarning: checkOK,
	} {
		d := &doctor{}
		d.certificate("n1", now.Add(left), now)
		require.Len(t, d.Checks, 1)
		require.Equal(t, status, d.Checks[0].Status, left)
		require.Contains(t, d.Checks[0].Found, "n1")
	}
	for _, c := range []struct {
		err                   error
		check, status, repair string
	}{
		{fmt.Errorf("tls: %w", x509.CertificateInvalidError{Reason: x509.Expired}), "certificate", checkError, "new certificate"},
		{errors.New("connection refused"), "server", checkWarning, "fix the network"},
		{nats.ErrAuthorization, "server", checkWarning, "give it the same users"},
		{nats.ErrSecureConnWanted, "server", checkWarning, "the server has no TLS"},
	} {
		d := &doctor{}
		d.unreached("nats://u:secret@n2:4222", c.err)
		require.Equal(t, c.check, d.Checks[0].Check)
		require.Equal(t, c.status, d.Checks[0].Status)
		require.Contains(t, d.Checks[0].Repair, c.repair)
		require.Contains(t, d.Checks[0].Found, "n2:4222")
		require.NotContains(t, d.Checks[0].Found, "secret")
	}
}

// TestStoppedJetStream checks that a lagging replica is listed if its server replies without
// JetStream: such a replica catches up only after a restart.
func TestStoppedJetStream(t *testing.T) {
	t.Parallel()
	d := &doctor{visited: []visited{{name: "n1", stored: true}, {name: "n2"}, {name: "edge"}}}
	d.info = &kvstore.Info{}
	d.info.Cluster = &jetstream.ClusterInfo{Leader: "n1", Replicas: []*jetstream.PeerInfo{{Name: "n2", Lag: 17519}, {Name: "n3"}}}
	require.Equal(t, []string{"n2"}, d.stopped())
}
