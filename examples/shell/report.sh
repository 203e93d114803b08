#!/bin/sh
# report.sh makes a report once per hour, on one of many machines. Cron starts it on each:
#
#	5 * * * *  NATS_URL=nats://10.0.0.5 /usr/local/bin/report.sh /srv/reports
#
# The first machine takes the lock of the hour, which nobody releases. So a machine whose
# clock is late finds it taken, and does nothing. A report that fails is made again only if
# you say so: HOUR=20261122T03.again report.sh /srv/reports
#
#	go build -o /tmp/lockctl ./cmd/lockctl && PATH=/tmp:$PATH && mkdir -p /tmp/reports
#	lockctl server & sleep 1   # on servers of your own: lockctl init
#	(for i in 1 2 3; do ./examples/shell/report.sh /tmp/reports & done; wait)
set -eu

if [ "${LOCK_NAME-}" != report ]; then
	export HOUR="${HOUR:-$(date -u +%Y%m%dT%H)}"
	# The TTL is longer than clocks differ. Nothing renews this lock.
	said=$(lockctl acquire -n -E 3 --ttl 2h "report.$HOUR" 2>&1) || case $? in
	3) exit 0 ;; # another machine has taken the hour
	*) code=$?; echo "$said" >&2; exit $code ;; # cron mails it
	esac
	# This lock is renewed, and lockctl ends the script when the lock is lost. The report of
	# the last hour may still be at work: then this one waits.
	exec lockctl run report -- "$0" "$@"
fi

# Here is the report. It is the only one at work, unless its machine was suspended. Such a
# report has a smaller token in its name, and readers take the last name of an hour.
name=report.$HOUR.$(printf %020d "$LOCK_TOKEN")
uptime >"$1/.$name"
mv "$1/.$name" "$1/$name"
