package kvstore

import (
	"cmp"
	"fmt"
	"strconv"
)

// MinServer is the oldest nats-server version on which a bucket is safe. Versions 2.11.0 to
// 2.11.6 can ignore a write's condition, depending on the order of its headers, all 2.11
// versions ignore stream settings that they do not know, and 2.10 has no TTLs.
const MinServer = "2.12"

const (
	// minLevel is the JetStream API level of MinServer.
	minLevel = 2
	// Servers since 2.11 add these entries to the configuration in their responses, but do
	// not store them. They describe the server that leads the stream, no matter which
	// server the client is connected to.
	metaLevel   = "_nats.level"
	metaVersion = "_nats.ver"

	serverSetting = "nats-server"
	byServer      = "upgrade every server that may store the bucket to " + MinServer + " or later"
)

// ServerFits reports whether a bucket is safe on the given version of nats-server, such as
// "2.12.1". It returns false if it cannot parse version.
func ServerFits(version string) bool {
	var v, minimum [2]int
	if _, err := fmt.Sscanf(version, "%d.%d", &v[0], &v[1]); err != nil {
		return false
	}
	_, _ = fmt.Sscanf(MinServer, "%d.%d", &minimum[0], &minimum[1])
	return cmp.Or(cmp.Compare(v[0], minimum[0]), cmp.Compare(v[1], minimum[1])) >= 0
}

// serverOf returns the API level and a description of the server that reported this stream
// metadata.
func serverOf(metadata map[string]string) (level int, description string) {
	level, _ = strconv.Atoi(metadata[metaLevel])
	return level, describe(metadata[metaVersion], level)
}

// describe describes a server by its version or, if version is empty, by the version that
// its API level implies.
func describe(version string, level int) string {
	switch {
	case version != "":
	case level == 0:
		version = "older than 2.11"
	default:
		version = "2.11"
	}
	return fmt.Sprintf("%.32s (JetStream API level %d)", version, level)
}
